"""What was measured of a setup's numerics, before anything is judged."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_POWER, MOST_POWER = 0, 32
"""Powers of two that a trace tries as loss scales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """The gradient of a setup against that of another, which differs in sharding alone.

    Attributes:
        key: The other setup.
        gain: As in `GradientReading`, with the other's gradient as the reference.
        relative_error: Likewise.
    """

    key: str
    gain: float
    relative_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientReading:
    """The gradient that a setup applies, and a short training run, against fp32.

    The gradient ``g`` is what one SGD step subtracts from the master weights, after reduction
    over all ranks; the reference ``r`` is that of fp32 on the same batches and weights.

    Attributes:
        loss_finite: Whether the loss of the first step was finite on every rank.
        activation_absmax: Largest absolute output of any module in the fp32 reference; infinite
            when one is not finite.
        activation_module: Which module.
        skipped_tries: Steps that were skipped for overflow before the measured one.
        gain: ``<g, r> / <r, r>``; 1 when the gradient is neither scaled nor partly missing.
        relative_error: ``|g - r| / |r|``.
        cosine: ``<g, r> / (|g| |r|)``; 0 when g vanishes.
        worst_tensor: Parameter with the largest relative error.
        worst_tensor_error: Its relative error. Parameters whose reference gradient has less than
            a millionth of the whole norm are not looked at.
        underflow_fraction: Elements that are zero in g, of those that are not in r.
        underflow_norm: Norm of these elements in r over ``|r|``.
        reference_norm: ``|r|``.
        moved_fraction: Weights that an applied training step changes, of those with a gradient.
        applied_steps: Of the training run.
        skipped_steps: Of the training run, for overflow.
        losses: Of each of its steps, mean over ranks and micro-batches; NaN after the library
            gave up because the loss scale could not fall further.
        reference_losses: Of fp32 on the same batches in the same order.
        permuted_losses: Of fp32 runs with the same batches in other orders.
        sibling: Against a setup that should apply the same gradient; None for the first.
    """

    loss_finite: bool
    activation_absmax: float
    activation_module: str
    skipped_tries: int
    gain: float
    relative_error: float
    cosine: float
    worst_tensor: str
    worst_tensor_error: float
    underflow_fraction: float
    underflow_norm: float
    reference_norm: float
    moved_fraction: float
    applied_steps: int
    skipped_steps: int
    losses: tuple[float, ...]
    reference_losses: tuple[float, ...]
    permuted_losses: tuple[tuple[float, ...], ...]
    sibling: Siblings | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTrace:
    """What an fp16 training run says about loss scales, step by step.

    Attributes:
        finite_powers: For each step the largest power of two between `LEAST_POWER` and
            `MOST_POWER` whose scaled backward was finite on every rank, found by trying;
            ``LEAST_POWER - 1`` where none was.
        absmax_log2: For each step log2 of the largest absolute gradient after reduction, not
            scaled.
        lowest_bin: log2 of the lower edge of the first bin of the histogram.
        counts: Gradient elements by ``floor(log2 |g|)``, over all steps, one bin a bit.
        squares: Sum of their squares, bin by bin.
    """

    finite_powers: tuple[int, ...]
    absmax_log2: tuple[float, ...]
    lowest_bin: int
    counts: tuple[int, ...]
    squares: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSample:
    """fp32 gradients of single micro-batches, not reduced, at the same random elements.

    Attributes:
        micro_batches: Rows, over all ranks.
        elements: Columns.
        data: Base64 of little-endian float32, row by row.
    """

    micro_batches: int
    elements: int
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Backward seconds of neighbouring steps with and without gradient communication.

    Each value is the sum over the micro-batches of a step, of the slowest rank.

    Attributes:
        synced_seconds: With it, one value a pair.
        unsynced_seconds: Without it.
    """

    synced_seconds: tuple[float, ...]
    unsynced_seconds: tuple[float, ...]


Reading = GradientReading | ScaleTrace | GradientSample | Exposure
