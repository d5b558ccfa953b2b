"""What has to be equal for the numbers of two sessions to be comparable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError
from autotune.workload import Hf, Workload

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
        "workload": _workload(plan.spec.workload),
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


def _workload(workload: Workload) -> dict[str, Any]:
    """The workload without the places of its files, which may move; of a model its configuration.

    Weights and tokens are named by size: they are too large to be read for a comparison.
    """
    described = asdict(workload)
    described["model"].pop("folder", None)
    if isinstance(workload.model, Hf):
        path = Path(workload.model.path)
        config = path / "config.json" if path.is_dir() else path
        described["model"]["path"] = hashlib.sha256(config.read_bytes()).hexdigest()
        data = workload.model.data
        described["model"]["data"] = data and [Path(data).name, Path(data).stat().st_size]
    return described


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
