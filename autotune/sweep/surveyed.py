"""What findings mean for a plan: values that are not tried, and loss scales that are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from autotune.numerics.findings import Communication, Finding, ScaleChoice, WireErrors
from autotune.numerics.names import communication_name, scale_name, trace_name, wires_name
from autotune.numerics.policy import evaluate
from autotune.numerics.reduction import Grade, grade, sentence
from autotune.numerics.thresholds import Bound
from autotune.readings import ScaleTrace
from autotune.setup import LossScale, Scaler, Setup, scaler_of
from autotune.space import Restriction, ScalePlace
from autotune.sweep.plan import Plan

Findings = Mapping[str, Finding]


def surveyed(plan: Plan, findings: Findings) -> Plan:
    """The plan with what was found: fewer setups, and the chosen loss scales."""
    restrictions = (
        Restriction(
            "communication-not-exposed",
            _closed_reason(findings),
            lambda setup, context: setup.grad_comm_dtype != "fp32" and _closed(setup, findings),
        ),
        Restriction(
            "wire-error-at-target",
            _wire_reason(plan, findings),
            lambda setup, context: refused_wire(plan, setup, findings) is not None,
        ),
        Restriction(
            "no-loss-scale-trains",
            _scale_reason(findings),
            lambda setup, context: (
                setup.precision == "fp16" and _no_scale(setup, findings, plan.horizon)
            ),
        ),
    )
    space = replace(
        plan.space,
        restrictions=(*plan.space.restrictions, *restrictions),
        policies=_policies(findings, plan.horizon),
    )
    return replace(plan, space=space)


def _closed(setup: Setup, findings: Findings) -> bool:
    found = findings.get(communication_name(setup))
    return isinstance(found, Communication) and found.closed


def _closed_reason(findings: Findings) -> str:
    """Of all that are closed, or of none."""
    closed = [
        f"{name.removeprefix('communication ')}: {found.text}"
        for name, found in findings.items()
        if isinstance(found, Communication) and found.closed
    ]
    return "fp32 on the wire is kept where a narrower dtype can gain nothing. " + " ".join(closed)


def wire_bound(plan: Plan) -> Bound:
    """Error of the reduced gradient at the real run's world size: warned of, and refused."""
    return plan.thresholds.bound("wire-error", plan.baseline)


def _wires(plan: Plan, setup: Setup, findings: Findings) -> WireErrors | None:
    if plan.target_world_size is None:
        return None
    found = findings.get(wires_name(setup, plan.target_world_size))
    return found if isinstance(found, WireErrors) else None


def _graded(plan: Plan, setup: Setup, findings: Findings, wanted: Grade) -> str | None:
    """What is said of the setup's wire dtype at the real run's world size, if graded so."""
    found, bound = _wires(plan, setup, findings), wire_bound(plan)
    for item in found.predictions if found else ():
        graded = grade(item, warn=bound.warn, refuse=bound.limit)
        if item.wire == setup.grad_comm_dtype and graded == wanted:
            return sentence(item, graded)
    return None


def refused_wire(plan: Plan, setup: Setup, findings: Findings) -> str | None:
    """Why the setup's wire dtype is refused at the real run's world size; None where it is not."""
    return _graded(plan, setup, findings, "refuse")


def risky(plan: Plan, setup: Setup, findings: Findings) -> bool:
    """Whether the setup's wire dtype is warned of at the real run's world size."""
    return _graded(plan, setup, findings, "warn") is not None


def _wire_reason(plan: Plan, findings: Findings) -> str:
    bound = wire_bound(plan)
    refused = [
        sentence(item, "refuse")
        for found in findings.values()
        if isinstance(found, WireErrors)
        for item in found.predictions
        if grade(item, warn=bound.warn, refuse=bound.limit) == "refuse"
    ]
    reason = f"the reduced gradient may lose at most {bound.limit:.3g} of its norm."
    return " ".join((reason, *dict.fromkeys(refused)))


def _no_scale(setup: Setup, findings: Findings, steps: int) -> bool:
    found = findings.get(scale_name(setup, steps))
    return isinstance(found, ScaleChoice) and found.chosen is None


def _scale_reason(findings: Findings) -> str:
    failed = [
        found.text
        for found in findings.values()
        if isinstance(found, ScaleChoice) and found.chosen is None
    ]
    return " ".join(("fp16 needs a loss scale that trains.", *dict.fromkeys(failed)))


def _policies(findings: Findings, steps: int) -> dict[ScalePlace, LossScale]:
    return {
        (found.scaler, found.micro_batch): found.chosen.policy
        for found in findings.values()
        if isinstance(found, ScaleChoice) and found.chosen is not None and found.steps == steps
    }


def useful_step_fraction(setup: Setup, findings: Findings, steps: int) -> float | None:
    """Share of the real run's steps that apply an update; None where no trace tells."""
    trace = findings.get(trace_name(setup))
    if setup.loss_scale is None or not isinstance(trace, ScaleTrace):
        return None
    choice = findings.get(scale_name(setup, steps))
    for score in (choice.chosen, choice.usual) if isinstance(choice, ScaleChoice) else ():
        if score is not None and score.policy == setup.loss_scale:
            return score.useful_step_fraction
    scaler = scaler_of(setup.backend, setup.zero_stage)
    return _replayed(scaler, setup.loss_scale, trace, steps)


@lru_cache(maxsize=16)
def _replayed(scaler: Scaler, scale: LossScale, trace: ScaleTrace, steps: int) -> float:
    """Share of useful steps. Every probe of a baseline asks, and a long run takes a second."""
    (score,) = evaluate(scaler, [scale], trace, steps)
    return score.useful_step_fraction
