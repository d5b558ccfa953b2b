"""What the measuring part of a probe came to, and the kind of outcome that this is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.outcome import Measurement, OutcomeKind
from autotune.probe.pace import StepTimes
from autotune.request import Measure


@dataclass(frozen=True, slots=True)
class Stopped:
    """A probe that the controller stopped early."""

    reason: str
    saved_seconds: float


@dataclass(frozen=True, slots=True)
class Finding:
    """What the measuring part of a probe came to.

    Attributes:
        measurement: When it came to an end.
        stopped: When the controller stopped it.
        wire: What was wrong on the wire.
        refused: Why the library gave up.
        throttled: As in `Outcome`.
    """

    measurement: Measurement | None = None
    stopped: Stopped | None = None
    wire: str | None = None
    refused: str | None = None
    throttled: tuple[str, ...] = ()


def judge(found: Finding) -> tuple[OutcomeKind, str | None]:
    """Kind and reason of the outcome: the wire first, then whether training happened at all."""
    measurement = found.measurement
    if found.stopped is not None:
        return "pruned", found.stopped.reason
    if measurement is None:
        return ("inert", found.wire) if found.wire else ("unsafe", found.refused)
    if not all(math.isfinite(loss) for loss in measurement.losses):
        return "unsafe", f"The loss was not finite: {measurement.losses}."
    if measurement.skipped_steps == len(measurement.backward_seconds):
        return "unsafe", "Every timed step was skipped for overflow."
    if measurement.end_to_end_steps == 0:
        return "unsafe", "Every end-to-end step was skipped for overflow."
    return "ok", None


def stop_early(
    reason: str, measure: Measure, warm: Sequence[StepTimes], steps: Sequence[StepTimes]
) -> Stopped:
    """What not taking the rest of the steps saves, at the pace of those that ran."""
    left = measure.timed_steps - len(steps) + measure.end_to_end_steps
    return Stopped(reason, left * fmean(step.whole for step in (*warm, *steps)))
