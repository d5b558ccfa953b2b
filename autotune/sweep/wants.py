"""Which readings a plan needs before its search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.decide.forecast import Readings
from autotune.numerics.names import communication_name, reducer_of, trace_name, wires_name
from autotune.request import Ask
from autotune.setup import Setup
from autotune.sweep.plan import Plan

PAIRS = 16  # backward passes with and without communication
SAMPLES = 16  # micro-batches, as in the predictor that was checked against simulated clusters
FASTEST_FIRST = ("bf16", "fp16", "tf32", "fp32")  # the less time compute takes, the more is exposed
SEEN_RANKS = 2  # two ranks add once: what a reduction loses on them is measured by the gates


@dataclass(frozen=True, slots=True)
class Want:
    """A reading, and the name of the finding that it leads to."""

    name: str
    ask: Ask
    setup: Setup
    steps: int


def wants(plan: Plan) -> list[Want]:
    """Every reading before the search; none can be taken from a script's own training loop."""
    if plan.script is not None:
        return []
    valid = list(plan.space.valid())
    return [*_exposures(plan, valid), *_samples(plan, valid), *_traces(plan, valid)]


def readings_of(plan: Plan) -> Readings:
    """How many there are, for the forecast."""
    found = wants(plan)
    exposures = [want.setup for want in found if want.ask == "exposure"]
    return Readings(
        exposures=len(exposures),
        alone=sum(always_reduces(setup) for setup in exposures),
        samples=sum(want.ask == "sample" for want in found),
        traces=sum(want.ask == "trace" for want in found),
        gates=plan.script is None,
    )


def always_reduces(setup: Setup) -> bool:
    """Whether the library has no backward without communication for the setup."""
    return setup.backend == "deepspeed" and setup.zero_stage >= 2


def _exposures(plan: Plan, valid: Sequence[Setup]) -> Iterator[Want]:
    """One setup for each way of reducing in which there is a choice of the wire dtype."""
    ways: dict[str, list[Setup]] = {}
    for setup in valid:
        ways.setdefault(reducer_of(setup), []).append(setup)
    for setups in ways.values():
        plain = [setup for setup in setups if setup.grad_comm_dtype == "fp32"]
        if plain and len(plain) < len(setups):
            setup = min(plain, key=lambda item: _most_exposed(item, plan.baseline))
            yield Want(communication_name(setup), "exposure", setup, PAIRS)


def _most_exposed(setup: Setup, baseline: Setup) -> tuple[int, bool, int]:
    return (
        FASTEST_FIRST.index(setup.precision),
        setup.micro_batch != baseline.micro_batch,
        setup.zero_stage,
    )


def _samples(plan: Plan, valid: Sequence[Setup]) -> Iterator[Want]:
    """The gradients of each micro-batch, if the real run has more ranks than a probe shows."""
    ranks = plan.target_world_size
    if ranks is not None and ranks > SEEN_RANKS:
        narrow = [setup for setup in valid if setup.grad_comm_dtype != "fp32"]
        for name, setup in {wires_name(item, ranks): item for item in narrow}.items():
            yield Want(name, "sample", setup, SAMPLES)


def _traces(plan: Plan, valid: Sequence[Setup]) -> Iterator[Want]:
    """One fp16 setup for each shape of the batches, the baseline's included."""
    scaled = [setup for setup in (plan.baseline, *valid) if setup.loss_scale]
    for name, setup in {trace_name(item): item for item in scaled}.items():
        yield Want(name, "trace", setup, plan.spec.trace_steps)
