"""Puts the rooms together for the command line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.backends import RESTRICTIONS
from autotune.errors import UsageError
from autotune.events import Event
from autotune.export import Note, Provenance
from autotune.export import export as export_probe
from autotune.export import write as write_export
from autotune.launch import LocalLauncher, Machine, describe_machine
from autotune.launch.describe import worker_environment
from autotune.report import build_result, find_probe, write_json
from autotune.search import Store
from autotune.space import Context, make_baseline, make_space
from autotune.spec import Spec, read_spec
from autotune.sweep import Plan, Sweep

RESULT = "result.json"
IDENTITY = ("torch", "deepspeed", "device", "gpus", "cuda", "nccl", "cpu")


@dataclass(frozen=True, slots=True)
class Made:
    """A plan, with the machine it was made on."""

    plan: Plan
    machine: Machine
    ranks: int


def make_plan(file: Path) -> Made:
    """Reads the sweep file and asks the machine.

    Raises:
        UsageError: The file is wrong, or nothing is left of its space.
    """
    spec = read_spec(file)
    machine = describe_machine()
    ranks = spec.ranks or machine.default_ranks
    _check_ranks(ranks, machine)
    context = Context(
        workload=spec.workload,
        world_size=ranks,
        device=machine.device,
        bf16=machine.facts["bf16"],
        fp16=machine.facts["fp16"],
        tf32=machine.facts["tf32"],
    )
    space = make_space(spec.axes, context, RESTRICTIONS)
    return Made(Plan(spec, space, make_baseline(spec.baseline, space)), machine, ranks)


def _check_ranks(ranks: int, machine: Machine) -> None:
    gpus = len(machine.facts["gpus"])
    if gpus and ranks > gpus:
        raise UsageError(
            f"launch.local.ranks is {ranks}, this machine has {gpus} GPUs; "
            "give a smaller number or auto."
        )


def describe_plan(made: Made) -> dict[str, Any]:
    """What a sweep would try, as JSON types."""
    plan = made.plan
    valid = plan.space.valid()
    return {
        "schema": 1,
        "name": plan.spec.name,
        "ranks": made.ranks,
        "device": made.machine.device,
        "axes": {name: list(values) for name, values in plan.space.axes.items()},
        "setups": [setup.key for setup in valid],
        "baseline": plan.baseline.key,
        "removed": [asdict(item) for item in plan.space.removed()],
        "planned": planned(plan.spec, len(valid)),
    }


def planned(spec: Spec, setups: int) -> dict[str, Any]:
    """What the sweep file allows the run to spend."""
    return {"setups": setups, "probes": spec.budget.probes, "minutes": spec.budget.minutes}


def fingerprint(made: Made) -> dict[str, Any]:
    """What must be equal for two sessions of one run to be comparable."""
    plan = made.plan
    return {
        **{name: made.machine.facts[name] for name in IDENTITY},
        "world_size": made.ranks,
        "workload": _without_folder(asdict(plan.spec.workload)),
        "measure": asdict(plan.spec.measure),
        "templates": _digests(plan.spec.templates),
        "space": {name: list(values) for name, values in plan.space.axes.items()},
        "baseline": plan.baseline.key,
    }


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


def make_sweep(
    made: Made, folder: Path, emit: Callable[[Event], None], *, resume: bool
) -> tuple[Sweep, Store]:
    """Opens or creates the run and everything that the loop needs.

    Raises:
        UsageError: The folder holds a run already, or one of another fingerprint.
    """
    plan = made.plan
    valid = plan.space.valid()
    store = Store(folder, create=not (resume and Store.exists(folder)))
    identity = fingerprint(made)
    _check_fingerprint(store.about.get("fingerprint"), identity, folder)
    store.describe(
        {
            "name": plan.spec.name,
            "fingerprint": identity,
            "versions": {name: made.machine.facts[name] for name in ("autotune", *IDENTITY[:2])},
            "baseline": plan.baseline.to_dict(),
            "removed": [asdict(item) for item in plan.space.removed()],
            "planned": planned(plan.spec, len(valid)),
            "templates": None if plan.spec.templates is None else str(plan.spec.templates),
        }
    )
    launcher = LocalLauncher(
        ranks=made.ranks,
        environment=worker_environment(made.machine, made.ranks),
        folder=folder / "launches",
    )
    return Sweep(plan, store, launcher, emit), store


def _check_fingerprint(
    before: Mapping[str, Any] | None, now: Mapping[str, Any], folder: Path
) -> None:
    for field in now if before is not None else ():
        assert before is not None
        if before.get(field) != now[field]:
            raise UsageError(
                f"{folder} was measured with {field} = {before.get(field)!r}, now it is "
                f"{now[field]!r}; the numbers cannot be compared. Restore it, or give the "
                "sweep another name."
            )


def open_run(folder: Path) -> Store:
    """An existing run.

    Raises:
        UsageError: The folder holds none, or one that never started.
    """
    store = Store(folder, create=False)
    if "baseline" not in store.about:
        raise UsageError(f"{folder} holds a run that never started; sweep it first.")
    return store


def result_of(store: Store) -> dict[str, Any]:
    """The result of the run so far, as in the result file."""
    return build_result(store.about["name"], store.probes(), store.about)


def write_result(store: Store) -> dict[str, Any]:
    """Writes ``result.json`` into the run and returns it."""
    result = result_of(store)
    write_json(store.folder / RESULT, result)
    return result


def export_run(
    store: Store, to: str, folder: Path, key: str | None, *, force: bool
) -> tuple[Sequence[Path], Sequence[Note]]:
    """Exports the winner, or the setup called ``key``, into ``folder``.

    Raises:
        UsageError: There is no winner yet, the setup was not measured, or does not fit ``to``.
    """
    result = result_of(store)
    wanted = key or result["winner"]
    if wanted is None:
        raise UsageError(f"{store.folder} has no winner yet; continue the sweep with --resume.")
    probe = find_probe(store.probes(), wanted)
    provenance = Provenance(
        run=result["name"],
        setup_key=wanted,
        versions=store.about["versions"],
        date=probe.finished_at,
        verdict=result["verdict"] if wanted == result["winner"] else "measured, not the winner",
    )
    templates = store.about["templates"]
    folder_of_templates = None if templates is None else Path(templates)
    exported = export_probe(probe, to, provenance, folder_of_templates)
    return write_export(exported, folder, force=force), exported.notes
