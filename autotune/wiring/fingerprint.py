"""What has to be equal for the numbers of two sessions to be comparable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.wiring.plan import Made

IDENTITY = ("torch", "deepspeed", "device", "gpus", "cuda", "nccl", "cpu")
COSTS = (*IDENTITY, "world_size", "workload", "measure")  # what a probe's time hangs on


def fingerprint(made: Made) -> dict[str, Any]:
    """Machine, versions and everything in the sweep file that changes a measurement."""
    plan = made.plan
    return {
        **{name: made.machine.facts[name] for name in IDENTITY},
        "world_size": made.ranks,
        "workload": _without_folder(asdict(plan.spec.workload)),
        "measure": asdict(plan.spec.measure),
        "training": {
            "learning_rate": plan.learning_rate,
            "gate_steps": plan.spec.gate_steps,
            "trace_steps": plan.spec.trace_steps,
        },
        "templates": _digests(plan.spec.templates),
        "space": {name: list(values) for name, values in plan.space.axes.items()},
        "baseline": plan.baseline.key,
        "own": None if plan.own is None else _digest(plan.own.config),
    }


def comparable(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The part that decides what a launch and a probe cost."""
    return {name: identity.get(name) for name in COSTS}


def _digest(config: Mapping[str, Any]) -> str:
    """Of a configuration file's content, whatever its layout."""
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _digests(folder: Path | None) -> dict[str, str]:
    """Digest of each of the user's templates; the same text renders the same configurations."""
    files = sorted(folder.rglob("*.j2")) if folder is not None else []
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if folder is not None
    }


def _without_folder(workload: dict[str, Any]) -> dict[str, Any]:
    """The workload without the place of the sweep file, which may move."""
    workload["model"].pop("folder", None)
    return workload


def check_fingerprint(
    before: Mapping[str, Any] | None, now: Mapping[str, Any], folder: Path
) -> None:
    """Refuses to go on with a run that was measured under other conditions.

    Raises:
        UsageError: Naming the field that differs.
    """
    for field in now if before is not None else ():
        assert before is not None
        if before.get(field) != now[field]:
            raise UsageError(
                f"{folder} was measured with {field} = {before.get(field)!r}, now it is "
                f"{now[field]!r}; the numbers cannot be compared. Restore it, or give the "
                "sweep another name."
            )
