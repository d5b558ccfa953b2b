"""Makes sweeps, later confirmations and replays ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autotune.decide.race import LEAST_LAUNCHES
from autotune.errors import UsageError
from autotune.events import Event
from autotune.launch import Machine, Recorded, ReplayLauncher, describe_machine
from autotune.report import find_probe
from autotune.search import Store
from autotune.setup import Setup
from autotune.spec import Budget, Command, Spec
from autotune.sweep import End, Plan, Spent, Sweep
from autotune.sweep.bench import typical_start
from autotune.sweep.costs import planned
from autotune.wiring.baseline import describe_own
from autotune.wiring.fingerprint import IDENTITY, check_fingerprint, fingerprint
from autotune.wiring.plan import Made, make_launcher, make_plan
from autotune.wiring.results import open_run

SWEEP_FILE = "sweep.yaml"  # a run's own copy, for a confirmation on another day
Emit = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Session:
    """Something to run, with the run that keeps its records.

    Attributes:
        sweep: The loop.
        store: The run.
        run: Runs it to its end.
    """

    sweep: Sweep
    store: Store
    run: Callable[[], End]


def make_sweep(made: Made, folder: Path, emit: Emit, *, resume: bool) -> Session:
    """Opens or creates the run and everything that the loop needs.

    Raises:
        UsageError: The folder holds a run already, or one of another fingerprint.
    """
    store = Store(folder, create=not (resume and Store.exists(folder)))
    identity = fingerprint(made)
    check_fingerprint(store.about.get("fingerprint"), identity, folder)
    about = _about(made, identity)
    about["planned"] = {**store.about.get("planned", {}), **about["planned"]}
    store.describe(about)
    (folder / SWEEP_FILE).write_bytes(made.plan.spec.source.read_bytes())
    sweep = Sweep(made.plan, store, make_launcher(made, folder), emit)
    return Session(sweep, store, sweep.run)


def _about(made: Made, identity: Mapping[str, Any]) -> dict[str, Any]:
    """What the run keeps about itself, beside its probes."""
    plan = made.plan
    return {
        "name": plan.spec.name,
        "home": str(plan.spec.home),
        "command": _command(plan.spec),
        "own": None
        if plan.own is None
        else describe_own(plan.own, own_trainer=plan.script is None),
        "margin": plan.spec.margin,
        "fingerprint": identity,
        "machine": made.machine.facts,
        "versions": {name: made.machine.facts[name] for name in ("autotune", *IDENTITY[:2])},
        "baseline": plan.baseline.to_dict(),
        "removed": [asdict(item) for item in plan.space.removed()],
        "target": _target(plan),
        "gates": dict(plan.spec.gates),
        "planned": planned(plan, None, None),
        "templates": None if plan.spec.templates is None else str(plan.spec.templates),
    }


def _command(spec: Spec) -> dict[str, Any] | None:
    """The script that stood on the command line; the run's copy of the file lacks it."""
    given = spec.command
    return None if given is None else {"words": list(given.words), "folder": str(given.folder)}


def _target(plan: Plan) -> dict[str, Any]:
    """The real run, and what was assumed of it because the file does not say."""
    named = plan.spec.target
    return {
        "world_size": plan.target_world_size,
        "steps": plan.horizon,
        "learning_rate": plan.learning_rate,
        "assumed": [
            name
            for name in ("steps", "learning_rate")
            if named is None or getattr(named, name) is None
        ],
    }


def _check_age(store: Store) -> None:
    if "machine" not in store.about:
        raise UsageError(
            f"{store.folder} was measured by an older autotune that kept no sweep file; sweep it "
            "again under another name."
        )


def _remake(store: Store, machine: Machine, budget: Budget | None) -> Made:
    """The plan of a run, from its own copy of the sweep file."""
    assert store.folder is not None
    copy = store.folder / SWEEP_FILE
    if not copy.exists():
        raise UsageError(f"{store.folder} has lost its {SWEEP_FILE}; put the sweep file back.")
    home, command = Path(store.about["home"]), _given(store)
    return make_plan(copy, budget=budget, home=home, machine=machine, command=command)


def _given(store: Store) -> Command | None:
    """The script of a run whose sweep file leaves it to the command line."""
    kept = store.about.get("command")
    return kept and Command(words=tuple(kept["words"]), folder=Path(kept["folder"]))


def make_confirmation(
    folder: Path,
    emit: Emit,
    *,
    keys: Sequence[str],
    launches: int | None,
    budget: Budget | None,
    resume: bool,
) -> Session:
    """A confirmation of a run's candidates, or of the setups called ``keys``.

    Args:
        folder: The run.
        emit: Told of everything.
        keys: The candidates; by default those of the last confirmation.
        launches: At most as many; by default as many as their spread asks for, up to 30.
        budget: For this confirmation alone; by default the launches alone limit it.
        resume: Go on with the last confirmation in place of a new one.

    Raises:
        UsageError: There is no such run or setup, or the run has another fingerprint.
    """
    if launches is not None and launches < LEAST_LAUNCHES:
        raise UsageError(
            f"--launches: {launches} are too few for a verdict; allowed: {LEAST_LAUNCHES} or more"
        )
    store = open_run(folder)
    _check_age(store)
    made = _remake(store, describe_machine(), None)
    check_fingerprint(store.about["fingerprint"], fingerprint(made), folder)
    spec = replace(made.plan.spec, budget=_on_top(budget, store))
    sweep = Sweep(replace(made.plan, spec=spec), store, make_launcher(made, folder), emit)
    if resume:
        if not store.about.get("confirmations"):
            raise UsageError(f"{folder} has no confirmation to go on with; leave --resume out.")
        return Session(sweep, store, sweep.resume_confirmation)
    setups = _candidates(store, keys)
    return Session(sweep, store, lambda: sweep.confirm_again(setups, launches))


def _on_top(budget: Budget | None, store: Store) -> Budget:
    """A budget beside what the run has spent so far."""
    if budget is None:
        return Budget(minutes=None, probes=None)
    spent = Spent.from_dict(store.about.get("spent", {})).total
    return Budget(
        minutes=None if budget.minutes is None else budget.minutes + spent.seconds / 60,
        probes=None if budget.probes is None else budget.probes + spent.probes,
    )


def _candidates(store: Store, keys: Sequence[str]) -> list[Setup]:
    plans = store.about.get("confirmations")
    if keys:
        named = [find_probe(store.probes(), key).setup for key in dict.fromkeys(keys)]
        if Setup.from_dict(store.about["baseline"]) in named:
            raise UsageError("--setup: the baseline is always measured; name another setup.")
        return named
    if not plans or not plans[-1]["setups"]:
        raise UsageError(
            f"{store.folder} has no candidate to confirm; finish the sweep with --resume, or "
            "name a measured setup with --setup."
        )
    return [Setup.from_dict(knobs) for knobs in plans[-1]["setups"]]


def make_replay(
    folder: Path, emit: Emit, *, file: Path | None, budget: Budget | None, seed: int
) -> Session:
    """The whole loop on the records of a run; nothing is started, nothing is written.

    Args:
        folder: The run.
        emit: Told of everything.
        file: A sweep file with another margin, budget or space; by default the run's own.
        budget: In place of the file's.
        seed: Of the draws.

    Raises:
        UsageError: There is no such run, or the file is wrong.
    """
    recorded = open_run(folder)
    _check_age(recorded)
    machine = Machine(recorded.about["machine"])
    made = (
        _remake(recorded, machine, budget)
        if file is None
        else make_plan(file, budget=budget, machine=machine)
    )
    store = Store(None, create=True)
    identity = {**recorded.about["fingerprint"], "baseline": made.plan.baseline.key}
    store.describe({**_about(made, identity), "replay": True})
    for name, finding in recorded.findings().items():
        store.find(name, finding)
    source = Recorded(recorded.probes(), typical_start(recorded.about.get("starts", [])))
    sweep = Sweep(made.plan, store, ReplayLauncher(source, ranks=made.ranks, seed=seed), emit)
    return Session(sweep, store, sweep.run)
