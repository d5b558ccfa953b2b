"""What the controller asks of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.setup import Setup
from autotune.workload import Workload

USUAL_LEARNING_RATE = 1e-4  # small enough that no setup diverges within a probe
Ask = Literal["gradient", "trace", "sample", "exposure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How long a probe measures.

    Attributes:
        warm_up_steps: Optimizer steps before the first check for steadiness.
        warm_up_cap: Steps after which measuring starts, steady or not.
        timed_steps: Steps with per-phase times.
        end_to_end_steps: Steps of the pass without per-phase synchronisation.
        burst_steps: Timed steps after which the controller may stop the probe; 0 for never.
    """

    warm_up_steps: int = 4
    warm_up_cap: int = 12
    timed_steps: int = 10
    end_to_end_steps: int = 5
    burst_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """One probe: a setup, the text that configures it, and the workload it trains.

    Attributes:
        setup: The setup that the text must amount to.
        rendered: DeepSpeed's JSON, the FSDP2 or DDP module, or a bundle of a script's files.
        workload: What to train.
        measure: How long.
    """

    setup: Setup
    rendered: str
    workload: Workload
    measure: Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingRequest:
    """One reading of numerics or of communication.

    Attributes:
        ask: ``gradient``: a `GradientReading` of the setup. ``trace``: a `ScaleTrace` of fp16
            training with the setup's batches. ``sample``: a `GradientSample` of them.
            ``exposure``: an `Exposure` of the setup.
        setup: The setup that the text must amount to.
        rendered: DeepSpeed's JSON, the FSDP2 or DDP module, or a bundle of a script's files.
        workload: What to train.
        steps: Optimizer steps of a training run or a trace, pairs of an exposure, micro-batches
            of a sample.
        learning_rate: Of AdamW in training runs.
    """

    ask: Ask
    setup: Setup
    rendered: str
    workload: Workload
    steps: int
    learning_rate: float
