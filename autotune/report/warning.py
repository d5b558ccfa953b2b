"""What a warning is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class WarningKind(str, Enum):
    """What a warning is about; the values stand in the result file."""

    UNSTEADY = "unsteady-steps"
    DRIFT = "drift"
    NOISE_ABOVE_MARGIN = "noise-above-margin"
    THROTTLED = "throttled"
    BUSY = "busy"
    MEAN_MEDIAN = "mean-median"
    UNCONFIRMED = "unconfirmed"
    FEW_LAUNCHES = "few-launches"
    CONTROL = "control"
    BACKWARD_ONLY = "backward-only"
    END_TO_END = "end-to-end"
    BUDGET = "budget"
    GATE = "gate"
    GATE_WARNING = "gate-warning"
    UNGATED = "ungated"
    WIRE_AT_SCALE = "wire-at-scale"
    SKIPS = "skips"
    LIMITS = "limits"
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class Warning:
    """Something that weakens the result.

    Attributes:
        kind: What it is about.
        text: What was found, with its numbers.
        advice: What the user can do, in their own settings.
    """

    kind: WarningKind
    text: str
    advice: str

    def to_dict(self) -> dict[str, str]:
        """As JSON types."""
        return {"kind": self.kind.value, "text": self.text, "advice": self.advice}


def percent(share: float, digits: int = 1) -> str:
    """As in ``1.2 %``."""
    return f"{100 * share:.{digits}f} %"
