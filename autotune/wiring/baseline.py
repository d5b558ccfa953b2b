"""The baseline: knobs of the sweep file, and those of the user's own configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.configs import Refused, Understood, read_accelerate, read_deepspeed, settle
from autotune.errors import UsageError
from autotune.spec import OwnConfig, Spec


@dataclass(frozen=True, slots=True)
class Today:
    """What the user has.

    Attributes:
        knobs: As `make_baseline` takes them.
        own: The configuration file that they come from, if one does.
    """

    knobs: Mapping[str, Any]
    own: Understood | None


def read_today(spec: Spec) -> Today:
    """Reads the configuration file that the sweep file names, if it names one.

    Raises:
        UsageError: The file is refused, or contradicts the sweep file.
    """
    if spec.own is None:
        return Today(spec.baseline, None)
    read = _read(spec.own, spec.home)
    if isinstance(read, Refused):
        raise UsageError(_refusal(spec.own, read))
    settled = settle(read, spec.baseline)
    if isinstance(settled, Refused):
        raise UsageError(_refusal(spec.own, settled))
    _check_batch(spec, read)
    return Today(settled, read)


def _read(own: OwnConfig, folder: Path) -> Understood | Refused:
    if own.kind == "deepspeed":
        return read_deepspeed(own.path)
    return read_accelerate(own.path, folder)


def _refusal(own: OwnConfig, refused: Refused) -> str:
    """Every reason on a line of its own."""
    return "\n".join(f"{own.path.name}: {reason}" for reason in refused.reasons)


def _check_batch(spec: Spec, read: Understood) -> None:
    """The workload's batches are those of the file."""
    told = {
        "micro_batch": (read.knobs.get("micro_batch"), spec.workload.micro_batch),
        "gradient_accumulation": (
            read.gradient_accumulation,
            spec.workload.gradient_accumulation,
        ),
    }
    for name, (theirs, ours) in told.items():
        if theirs is not None and theirs != ours:
            assert spec.own is not None
            raise UsageError(
                f"workload.{name} is {ours}, but {spec.own.path.name} says {theirs}; make them "
                "agree: every setup keeps the batch that you train with."
            )


def describe_own(own: Understood, *, own_trainer: bool) -> dict[str, Any]:
    """What was read of a configuration file, as JSON types.

    Args:
        own: The file.
        own_trainer: Whether autotune's own trainer runs it, which some keys mean nothing to.
    """
    return {
        "kind": own.kind,
        "knobs": dict(own.knobs),
        "open": dict(own.open),
        "inert": [asdict(item) for item in own.inert],
        "notes": list(own.notes),
        "script_only": [asdict(item) for item in own.script_only] if own_trainer else [],
    }
