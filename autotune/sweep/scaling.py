"""Chooses the loss scales of fp16 setups by replay: nothing is started for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.events import Judged
from autotune.numerics.findings import ScaleChoice
from autotune.numerics.names import scale_name, trace_name
from autotune.numerics.policy import Limits, PolicyScore, choose, evaluate, explain
from autotune.readings import ScaleTrace
from autotune.scales import DEFAULTS, all_scales
from autotune.search import search_scales
from autotune.setup import LossScale, Setup, scaler_of
from autotune.sweep.bench import Bench

LISTED = "scales"  # what the run keeps beside a choice: the values that it was made among


def choose_scales(bench: Bench) -> None:
    """Replays the loss scales of every scaler and shape that has a trace and no choice yet.

    A choice among other values than the sweep file lists now is made again.
    """
    known, steps = bench.store.findings(), bench.plan.horizon
    listed = {field: list(values) for field, values in bench.plan.space.scales.items()}
    before: dict[str, Any] = bench.store.about.get(LISTED, {})
    scaled = [setup for setup in bench.plan.space.valid() if setup.loss_scale]
    for name, setup in {scale_name(item, steps): item for item in scaled}.items():
        trace = known.get(trace_name(setup))
        stands = name in known and before.get(name) == listed
        if not stands and isinstance(trace, ScaleTrace):
            found = _choose(bench, name, setup, trace)
            before = {**before, name: listed}
            bench.store.find(name, found)
            bench.store.describe({LISTED: before})
            bench.emit(Judged(text=found.text))
    bench.save("numerics")


def _choose(bench: Bench, name: str, setup: Setup, trace: ScaleTrace) -> ScaleChoice:
    scaler = scaler_of(setup.backend, setup.zero_stage)
    usual, limits, steps = DEFAULTS[scaler], Limits(), bench.plan.horizon
    policies = all_scales(bench.plan.space.scales, scaler)

    def replayed(scales: Sequence[LossScale]) -> list[PolicyScore]:
        return evaluate(scaler, scales, trace, steps)

    first = _likely(policies, usual, trace, limits)
    scores = search_scales(bench.store, name, policies, scaler, first, replayed, limits)
    chosen = choose(scores, usual, limits)
    (default,) = replayed([usual])
    return ScaleChoice(
        scaler=scaler,
        micro_batch=setup.micro_batch,
        steps=steps,
        tried=len(scores),
        chosen=chosen,
        usual=default,
        text=f"{scaler}: {explain(scores, chosen, default, limits, steps)}",
    )


def _likely(
    policies: Sequence[LossScale], usual: LossScale, trace: ScaleTrace, limits: Limits
) -> list[LossScale]:
    """The framework's own policy, and the same from the start that the trace asks for."""
    start = max(0, min(trace.finite_powers) - int(limits.headroom_bits))
    wanted = (usual, replace(usual, initial_power=start))
    return [scale for scale in dict.fromkeys(wanted) if scale in policies]
