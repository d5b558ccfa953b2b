"""Gates for a script: its own losses and gradient norms, beside those of a reference run.

Nothing can be read inside somebody else's training loop but what it does: the loss of each step,
and the norm of the gradient that it applies. The script starts every time with the same seed and
reads the same batches, so that its first steps under two setups can be compared one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from autotune.numerics.gates import (
    GateResult,
    Status,
    compared,
    explained_skips,
    last_losses,
    result,
)
from autotune.numerics.thresholds import SIGMAS, Bound, Thresholds
from autotune.setup import Setup

COMPARED = 5  # first steps whose gradient norms are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one probe of a script trained, from its first step.

    Attributes:
        losses: Of each step.
        norms: Of the gradient that each step applied; None where it was not taken.
    """

    losses: tuple[float, ...]
    norms: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The first steps of a script under one setup and under the reference.

    Attributes:
        run: Under the setup.
        skipped_steps: Steps of it that were skipped for overflow.
        reference: Key of the setup that it is compared with.
        references: Runs of the latter; two or more tell how much chance there is in them.
    """

    run: Run
    skipped_steps: int
    reference: str
    references: tuple[Run, ...]


def judge_training(
    setup: Setup, training: Training, thresholds: Thresholds
) -> tuple[GateResult, ...]:
    """Results of the gates that a script's own training can be sent through."""
    finite = _finite(training)
    if finite.status == "fail":
        return (finite,)
    gates = (
        finite,
        _skipped(setup, training),
        _gradient_norm(setup, training, thresholds),
        _loss_band(setup, training, thresholds),
    )
    return tuple(item for item in gates if item is not None)


def _finite(training: Training) -> GateResult:
    losses = training.run.losses
    broken = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    status: Status = "pass" if broken is None else "fail"
    text = f"the losses of {len(losses)} steps are finite"
    if broken is not None:
        text = f"the loss of step {broken + 1} of {len(losses)} is {losses[broken]}"
    return result("finite-forward", status, math.nan, math.nan, text)


def _skipped(setup: Setup, training: Training) -> GateResult | None:
    if setup.precision not in ("bf16", "fp16"):
        return None
    skipped, steps = training.skipped_steps, len(training.run.losses)
    explained = explained_skips(setup, steps)
    text = f"{skipped} of {steps} steps skipped for overflow; "
    text += f"the loss scaler explains up to {explained}" if explained else "none should be"
    if skipped >= steps:
        text = f"all {steps} steps skipped for overflow: the model never trains"
        return result("skipped-steps", "fail", skipped, explained, text)
    status: Status = "pass" if skipped <= explained else "warn"
    return result("skipped-steps", status, skipped, explained, text)


def _gradient_norm(setup: Setup, training: Training, thresholds: Thresholds) -> GateResult | None:
    """Catches gradients that are scaled wrongly, averaged twice, or missing from the sum."""
    bound = thresholds.bound("gradient-norm", setup)
    usual = [
        _middle([run.norms[step] for run in training.references if step < len(run.norms)])
        for step in range(max(len(run.norms) for run in training.references))
    ]
    value = _log_ratio(training.run.norms, usual)
    if value is None:
        return None
    chance = [found for run in training.references if (found := _log_ratio(run.norms, usual))]
    drift = _log_ratio(usual[training.skipped_steps :], usual) if training.skipped_steps else None
    limit = max(bound.limit, SIGMAS * _spread(chance), 2 * abs(drift or 0.0))
    ratio = math.exp(value)
    text = (
        f"over the first steps the applied gradient's norm is {ratio:.4g} times that of "
        f"{training.reference}; its distance from 1 is"
    )
    distance = abs(ratio - 1)
    return compared("gradient-norm", distance, Bound(limit, limit, bound.changed), text)


def _middle(norms: Sequence[float | None]) -> float | None:
    known = [norm for norm in norms if norm is not None and math.isfinite(norm) and norm > 0]
    return median(known) if known else None


def _log_ratio(norms: Sequence[float | None], usual: Sequence[float | None]) -> float | None:
    """Median of log(norm / usual norm) over the first steps that have both."""
    ratios = [
        math.log(norm / other) if norm > 0 else -math.inf
        for norm, other in zip(norms, usual, strict=False)
        if norm is not None and math.isfinite(norm) and other is not None
    ]
    return median(ratios[:COMPARED]) if ratios else None


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _loss_band(setup: Setup, training: Training, thresholds: Thresholds) -> GateResult:
    """The loss at the end, beside the reference's after as many applied steps.

    A run that is no further off than the reference moves in one step, or than runs of the
    reference are from one another, trains as well.
    """
    floor = thresholds.bound("loss-band", setup)
    found, last = last_losses(training.run.losses)
    steps, skipped = len(training.run.losses), training.skipped_steps
    stop = max(steps - skipped, last)
    ends = [_before(run.losses, stop, last) for run in training.references]
    expected = fmean(ends)
    whole = abs(expected) or 1.0
    step = fmean(_step(run.losses, stop, last) for run in training.references)
    limit = max(floor.limit, SIGMAS * _spread(ends) / whole, step / whole)
    subject = (
        f"after {steps} steps the loss is {found:.4g}, that of {training.reference} "
        f"{expected:.4g}: the difference is"
    )
    value = abs(found - expected) / whole
    return compared("loss-band", value, Bound(limit, limit, floor.changed), subject)


def _before(losses: Sequence[float], stop: int, last: int) -> float:
    """Mean of the ``last`` losses before step ``stop``, or of the end of a shorter run."""
    end = min(stop, len(losses))
    return fmean(losses[max(end - last, 0) : end])


def _step(losses: Sequence[float], stop: int, last: int) -> float:
    """How far the loss moves in a step there."""
    end = min(stop, len(losses))
    window = losses[max(end - last - 1, 0) : end]
    return abs(window[0] - window[-1]) / max(len(window) - 1, 1)
