"""What a sweep is expected to cost, from what one launch took."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autotune.decide.budget import Costs
from autotune.decide.forecast import forecast
from autotune.sweep.bench import Bench
from autotune.sweep.plan import Plan
from autotune.sweep.wants import readings_of

BASELINE_EVERY = 4  # probes of the search between two baselines


def calibrate(bench: Bench) -> Costs:
    """Costs by one launch with one baseline probe.

    Raises:
        EnvironmentFailedError: The baseline cannot be measured.
    """
    while not any(probe.outcome.kind == "ok" for probe in bench.probes):
        with bench.launch("search") as launch:
            if launch is not None:
                probe = bench.probe(launch, bench.plan.baseline, baseline=True)
                if probe.outcome.kind != "ok":
                    bench.baseline_failed(probe.outcome)
    return bench.costs


def planned(plan: Plan, costs: Costs | None, source: str | None) -> dict[str, Any]:
    """What the run may spend and is expected to, as JSON types.

    Args:
        plan: The sweep.
        costs: Of a launch and a probe; None before they are known.
        source: Where the costs are from.
    """
    setups = plan.space.valid()
    budget = plan.spec.budget
    allowed = {"setups": len(setups), "probes": budget.probes, "minutes": budget.minutes}
    if costs is None:
        return allowed
    phases = forecast(
        len(setups.keys() - {plan.baseline}),
        costs,
        plan.budget,
        baseline_every=BASELINE_EVERY,
        probes_per_launch=plan.spec.probes_per_launch,
        readings=readings_of(plan),
    )
    return {
        **allowed,
        "phases": {phase: item.to_dict() for phase, item in phases.items()},
        "from": source,
        "costs": asdict(costs),
    }
