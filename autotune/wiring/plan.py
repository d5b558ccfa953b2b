"""From a sweep file and a machine to a plan, and what it would cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autotune.backends import RESTRICTIONS
from autotune.backends.scripted import script_axes, script_restrictions
from autotune.decide.budget import Costs
from autotune.errors import UsageError
from autotune.events import Event
from autotune.launch import (
    Launcher,
    LocalLauncher,
    Machine,
    ScriptLauncher,
    describe_machine,
    plain_command,
)
from autotune.launch.describe import worker_environment
from autotune.scales import all_scales
from autotune.search import MOST_POLICIES, Store
from autotune.setup import scaler_of
from autotune.space import Context, make_baseline, make_space
from autotune.spec import Budget, Command, Spec, read_spec
from autotune.sweep import Bench, Plan
from autotune.sweep.costs import calibrate, planned
from autotune.wiring.baseline import describe_own, read_today
from autotune.wiring.fingerprint import comparable, fingerprint
from autotune.workload import Script


@dataclass(frozen=True, slots=True)
class Made:
    """A plan, with the machine it was made on."""

    plan: Plan
    machine: Machine
    ranks: int


def make_plan(
    file: Path,
    *,
    budget: Budget | None = None,
    home: Path | None = None,
    machine: Machine | None = None,
    command: Command | None = None,
) -> Made:
    """Reads the sweep file and asks the machine.

    Args:
        file: The sweep file.
        budget: In place of the file's own.
        home: Folder from which relative paths start; the file's own by default.
        machine: What is known of it already; asked otherwise.
        command: The script that stands on autotune's own command line, if one does.

    Raises:
        UsageError: The file is wrong, or nothing is left of its space.
    """
    spec = read_spec(file, home, command)
    if budget is not None:
        spec = replace(spec, budget=budget)
    return plan_of(spec, machine or describe_machine())


def plan_of(spec: Spec, machine: Machine) -> Made:
    """The plan of a sweep on a machine.

    Raises:
        UsageError: It asks for more ranks than there are GPUs, or nothing is left of its space.
    """
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
    axes, restrictions = spec.axes, RESTRICTIONS
    if isinstance(spec.workload.model, Script):
        axes = script_axes(spec.workload.model, spec.axes)
        restrictions = (*RESTRICTIONS, *script_restrictions(spec.workload.model))
    space = make_space(axes, context, restrictions)
    today = read_today(spec)
    baseline = make_baseline(today.knobs, space)
    return Made(Plan(spec, space, baseline, today.own), machine, ranks)


def _check_ranks(ranks: int, machine: Machine) -> None:
    gpus = len(machine.facts["gpus"])
    if gpus and ranks > gpus:
        raise UsageError(
            f"launch.local.ranks is {ranks}, this machine has {gpus} GPUs; "
            "give a smaller number or auto."
        )


def describe_plan(
    made: Made, runs: Path, folder: Path, emit: Callable[[Event], None]
) -> dict[str, Any]:
    """What a sweep would try and cost, as JSON types.

    Costs come from an earlier run that is comparable, or else from one launch that measures
    the baseline.

    Args:
        made: The plan.
        runs: Folder that holds the runs.
        folder: For the logs of a calibrating launch.
        emit: Told of it.
    """
    plan = made.plan
    valid = plan.space.valid()
    costs, source = known_costs(made, runs) or (
        calibrate(Bench(plan, Store(None, create=True), make_launcher(made, folder), emit)),
        "one calibrating launch",
    )
    return {
        "schema": 1,
        "name": plan.spec.name,
        "ranks": made.ranks,
        "device": made.machine.device,
        "axes": {name: list(values) for name, values in plan.space.axes.items()},
        "setups": [setup.key for setup in valid],
        "baseline": plan.baseline.key,
        "own": None
        if plan.own is None
        else describe_own(plan.own, own_trainer=plan.script is None),
        "command": plan.script and plain_command(plan.script, plan.baseline, made.ranks),
        "removed": [asdict(item) for item in plan.space.removed()],
        "closed": [asdict(item) for item in plan.space.closed()],
        "scales": scale_counts(plan),
        "planned": planned(plan, costs, source),
    }


def scale_counts(plan: Plan) -> dict[str, int]:
    """How many loss scales would be replayed, at most, for each scaler of the space.

    None for a script, of which no trace can be taken.
    """
    if plan.script is not None:
        return {}
    scalers = {
        scaler_of(setup.backend, setup.zero_stage)
        for setup in plan.space.valid()
        if setup.loss_scale
    }
    numbers = {scaler: len(all_scales(plan.space.scales, scaler)) for scaler in sorted(scalers)}
    return {scaler: min(MOST_POLICIES, number) for scaler, number in numbers.items()}


def known_costs(made: Made, runs: Path) -> tuple[Costs, str] | None:
    """What launches and probes cost in an earlier run of the same machine and workload."""
    wanted = comparable(fingerprint(made))
    for file in sorted(runs.glob("*/study.db")):
        about: Mapping[str, Any] = Store(file.parent, create=False).about
        planned = about.get("planned", {})
        if comparable(about.get("fingerprint", {})) == wanted and "costs" in planned:
            return Costs(**planned["costs"]), f"the run in {file.parent}"
    return None


def make_launcher(made: Made, folder: Path) -> Launcher:
    """Starts workers, or the user's script, on this machine; their logs go below ``folder``."""
    environment, launches = worker_environment(made.machine, made.ranks), folder / "launches"
    model = made.plan.spec.workload.model
    if isinstance(model, Script):
        return ScriptLauncher(made.ranks, environment, launches, model)
    return LocalLauncher(made.ranks, environment, launches)
