"""What readings came to: the values that a run keeps and that its decisions rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.numerics.gates import GateResult, judge
from autotune.numerics.names import gates_name
from autotune.numerics.policy import PolicyScore
from autotune.numerics.reduction import Prediction
from autotune.numerics.thresholds import Thresholds
from autotune.numerics.training import Training, judge_training
from autotune.readings import GradientReading, ScaleTrace
from autotune.setup import Scaler, Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """How long the backward pass waits for gradient communication, for setups that reduce alike.

    Attributes:
        setup: Key of the setup that was measured.
        backward_seconds: Its backward pass with communication.
        exposed_seconds: What communication adds to it.
        interval: 95 % interval of the latter.
        gain_bound: Most that half the bytes can gain in backward throughput, ratio minus 1.
        closed: Whether that is not worth a search.
        text: One sentence for people.
    """

    setup: str
    backward_seconds: float
    exposed_seconds: float
    interval: tuple[float, float]
    gain_bound: float
    closed: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WireErrors:
    """Predicted errors of the reduced gradient at the target's world size.

    Attributes:
        micro_batch: Samples of each.
        micro_batches: Micro-batch gradients that the prediction is drawn from.
        predictions: One a wire dtype.
    """

    micro_batch: int
    micro_batches: int
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleChoice:
    """The loss scale that replay chose for one scaler and micro-batch.

    Attributes:
        scaler: Whose rules were replayed.
        micro_batch: Of the trace.
        steps: Optimizer steps of the replayed run.
        tried: Policies that were replayed.
        chosen: The best of them; None when all are infeasible.
        usual: What the framework does when nothing is said.
        text: Why this one, or why none.
    """

    scaler: Scaler
    micro_batch: int
    steps: int
    tried: int
    chosen: PolicyScore | None
    usual: PolicyScore
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A setup at the gates; whether it passes follows from the limits, which may change.

    Attributes:
        setup: Its key.
        reading: What was measured.
    """

    setup: str
    reading: GradientReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A setup under which a script trained; whether it passes follows from the limits.

    Attributes:
        setup: Its key.
        training: Its first steps, beside those of a reference.
    """

    setup: str
    training: Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A reading that could not be taken, and why."""

    reason: str


Finding = Communication | WireErrors | ScaleTrace | ScaleChoice | Examined | Trained | Missing


def judged(
    setup: Setup, findings: Mapping[str, Finding], thresholds: Thresholds
) -> tuple[GateResult, ...]:
    """How a setup does at the gates by these limits; empty where it was not examined."""
    found = findings.get(gates_name(setup))
    if isinstance(found, Trained):
        return judge_training(setup, found.training, thresholds)
    return judge(setup, found.reading, thresholds) if isinstance(found, Examined) else ()
