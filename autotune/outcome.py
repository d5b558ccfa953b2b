"""What a probe found, as values. A failed setup is a result, never an exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, get_args

from autotune.setup import Setup

OutcomeKind = Literal["ok", "pruned", "oom", "invalid", "inert", "unsafe", "hang", "crash"]
Phase = Literal["numerics", "search", "race", "confirm"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Gradient collectives of one kind and dtype in one optimizer step of one rank.

    Attributes:
        kind: Operation, such as ``all_reduce`` or ``reduce_scatter``.
        dtype: Dtype of the tensors handed to it, such as ``bf16``.
        calls: Number of calls.
        bytes: Input bytes of all calls; what a link carries depends on the algorithm.
    """

    kind: str
    dtype: str
    calls: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Numbers of one probe. Per-step values are those of the slowest rank, in seconds.

    Attributes:
        forward_seconds: Sum over the micro-batches of a step, one value a timed step.
        backward_seconds: From the call of backward until every gradient collective of it has
            finished, summed over the micro-batches of a step; one value a timed step.
        step_seconds: Optimizer step, one value a timed step.
        skipped_steps: Timed steps whose update was skipped for overflow.
        tokens_per_step: Tokens of all ranks in one optimizer step.
        end_to_end_seconds: Wall time of the pass without per-phase synchronisation.
        end_to_end_steps: Applied optimizer steps in that pass.
        peak_memory_bytes: Peak of the fullest rank: allocated device memory on CUDA, resident
            memory of the process elsewhere.
        wire: Gradient collectives of one optimizer step.
        losses: Loss of the last micro-batch of each timed step, mean over the ranks.
        warm_up_steps: Steps before the first timed one.
        steady: Whether the warm-up ended because two halves of its window agreed.
        trained_steps: Steps of the whole probe, from the first.
        trained_skips: Those of them that were skipped for overflow.
        trained_losses: Loss of every step of the whole probe, mean over the ranks; of scripts only.
        gradient_norms: Norm of the gradient that each of these steps applied, after clipping where
            the script clips by itself; None where it was not taken. Of scripts only.
        useful_step_fraction: Steps that apply an update, of all steps of the real run, as the
            replay of the loss scale expects; None where nothing scales the loss, or nothing was
            replayed.
    """

    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]
    step_seconds: tuple[float, ...]
    skipped_steps: int
    tokens_per_step: int
    end_to_end_seconds: float
    end_to_end_steps: int
    peak_memory_bytes: int
    wire: tuple[Collective, ...]
    losses: tuple[float, ...]
    warm_up_steps: int
    steady: bool
    trained_steps: int = 0
    trained_skips: int = 0
    useful_step_fraction: float | None = None
    trained_losses: tuple[float, ...] = ()
    gradient_norms: tuple[float | None, ...] = ()

    @property
    def useful(self) -> float:
        """Share of the steps that count: replayed over the real run, else of the timed ones.

        A probe is too short to show how often a dynamic loss scale skips.
        """
        if self.useful_step_fraction is not None:
            return self.useful_step_fraction
        return 1 - self.skipped_steps / len(self.backward_seconds)

    @property
    def backward_tokens_per_second(self) -> float:
        """Tokens whose gradient is applied over the backward seconds of all timed steps."""
        steps = len(self.backward_seconds)
        return self.useful * steps * self.tokens_per_step / sum(self.backward_seconds)

    @property
    def median_backward_tokens_per_second(self) -> float:
        """As `backward_tokens_per_second`, at the median step: one stalled step moves it little."""
        return self.useful * self.tokens_per_step / median(self.backward_seconds)

    @property
    def end_to_end_tokens_per_second(self) -> float:
        """Tokens whose gradient is applied over wall time."""
        expected = 1.0 if self.useful_step_fraction is None else self.useful_step_fraction
        return expected * self.end_to_end_steps * self.tokens_per_step / self.end_to_end_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a probe ended.

    Attributes:
        kind: ``ok`` or the way it failed; ``pruned`` when the controller stopped it early.
        reason: One sentence for people; None when ``ok``.
        log: Last lines of the workers' logs when the launch was lost.
        measurement: Present when the probe got as far as measuring.
        seconds: Wall time of each phase: ``build``, ``wire``, ``warm_up``, ``timed``,
            ``end_to_end``, ``clean_up``.
        resident_bytes: Resident memory of the fullest rank after the clean-up.
        saved_seconds: What stopping early saved, at the pace of the steps that ran.
        throttled: Why a GPU lowered its clocks while the steps were timed, as NVML names it.
        notes: What else people should know of the run, such as where a script's files went.
    """

    kind: OutcomeKind
    reason: str | None = None
    log: str = ""
    measurement: Measurement | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    resident_bytes: int = 0
    saved_seconds: float = 0.0
    throttled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The record of one probe in a sweep.

    Attributes:
        number: Position in the sweep, from 0.
        launch: Number of the launch that served it, from 0.
        baseline: Whether it was taken as a baseline for its neighbours.
        setup: What was measured.
        rendered: The configuration text that ran.
        outcome: What was found.
        wall_seconds: From the request to the answer, seen by the controller.
        finished_at: ISO 8601 time, UTC.
        phase: What it was taken for.
        block: Number of its block in the phase, from 0; None in the search, and in the race for
            a second probe before its first block.
        round: Number of the confirmation, from 0; a run can be confirmed again later.
        control: Whether it is the baseline under its second label (A/A).
        others_busy: Share of the machine's cores that other processes used meanwhile.
    """

    number: int
    launch: int
    baseline: bool
    setup: Setup
    rendered: str
    outcome: Outcome
    wall_seconds: float
    finished_at: str
    phase: Phase = "search"
    block: int | None = None
    round: int = 0
    control: bool = False
    others_busy: float | None = None
