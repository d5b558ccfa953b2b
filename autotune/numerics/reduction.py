"""What summing gradients over many ranks in a narrow wire dtype costs, predicted on one machine.

A probe on two ranks adds once and rounds once, so it cannot show the error of a reduction over
hundreds. Here the gradients of a few micro-batches stand for those of all ranks, and three
models of the reduction add them up in the wire dtype.

An average divides by the world size before the sum or after it. The relative error is the same
but for the edges of fp16's range, so nothing is divided here; for fp16 the scale says where in
its range the sum takes place.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from autotune.readings import GradientSample
from autotune.setup import WireDtype

Gradients = NDArray[np.float32]
Rounding = Callable[[Gradients], Gradients]
Algorithm = Literal["ring", "tree", "fp32-accumulate"]
Grade = Literal["pass", "warn", "refuse"]

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
FP16_MAX = 65504.0
FP16_HEADROOM = 4  # no draw of `resample` is larger, in largest gradients of the sample
SPARSE_SCALES = np.float32(0.4)  # largest change in size of an element that is zero at times
CLEAR = 3  # standard errors from 0 at which the mean of an element counts as it is
# A rule of thumb without a public source. Its anchor is pytorch#106395, where a bf16 reduction
# trained well on 96 GPUs and was unstable on 384: where the mean gradient is .3 of its spread,
# a flat ring loses 1.3 % at 96 ranks and 8.4 % at 384 (benchmarks/reduction_error.py).
RING_WARNS = 0.01
RING_REFUSES = 0.05
TWO_RANKS = (
    "A measurement on two ranks cannot see this: two ranks add once and round once, and the error"
    " comes from the many additions of a large job."
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Relative errors of a gradient that is summed over ranks; infinite where it overflows.

    Attributes:
        wire: Dtype of the gradients between ranks.
        world_size: Ranks that sum.
        ring: Of one partial sum that passes all ranks. An upper bound: NCCL sums inside of a
            node first.
        tree: Of pairwise sums.
        fp32_accumulate: Of contributions in the wire dtype that are summed in fp32.
    """

    wire: WireDtype
    world_size: int
    ring: float
    tree: float
    fp32_accumulate: float


def decode(sample: GradientSample) -> Gradients:
    """The gradients of a sample, shape (micro_batches, elements)."""
    flat = np.frombuffer(base64.b64decode(sample.data), dtype="<f4")
    return flat.reshape(sample.micro_batches, sample.elements).astype(np.float32)


def round_to_bf16(values: Gradients) -> Gradients:
    """Rounds to the nearest bf16, ties to even; float32 of any shape, finite or infinite.

    A bf16 is the upper half of a float32, so half a step less one is added to the bits, and one
    more where the upper half is odd.
    """
    bits = values.view(np.uint32)
    carried = bits + ((bits >> 16) & 1) + np.uint32(0x7FFF)
    rounded: Gradients = (carried & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded


def round_to_fp16(values: Gradients) -> Gradients:
    """Rounds to the nearest fp16, ties to even; infinite where it overflows."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


def _keep(values: Gradients) -> Gradients:
    return values


# Two numbers in bf16 or fp16, added in fp32 and rounded, make what an addition in that dtype
# makes: 24 bits are enough for 2 x 11 + 2 (Figueroa, S. A. (1995), When is double rounding
# innocuous? ACM SIGNUM Newsletter 30(3), 21-26).
ROUNDINGS: Mapping[WireDtype, Rounding] = {
    "fp32": _keep,
    "bf16": round_to_bf16,
    "fp16": round_to_fp16,
}


def resample(gradients: Gradients, world_size: int, *, seed: int = 0) -> Iterator[Gradients]:
    """Draws the gradient of each of ``world_size`` ranks, float32, shape (elements,).

    Each is the mean gradient plus ``cos t r + sin t q``, with the residuals r and q of two
    random micro-batches and a random angle t: a random sign that takes every value between.
    With a sign alone each element knows few values, which come up again and again and round
    the same way each time; at 512 ranks that doubles the error of a ring.

    Elements that are zero in some micro-batch, as the rows of an embedding, are taken from one
    micro-batch and scaled a little: adding zero rounds nothing, and a residual has no zeros.

    Args:
        gradients: Of single micro-batches, shape (micro_batches, elements), at least 2 rows.
        world_size: Ranks.
        seed: Of the draws; the same seed makes the same gradients.
    """
    rows = len(gradients)
    assert rows > 1
    sparse = np.where((gradients == 0).any(axis=0), gradients, np.float32(0))
    centre, residuals = _centre_and_residuals(gradients - sparse)
    chance = np.random.default_rng(seed)
    first = chance.integers(rows, size=world_size)
    second = (first + chance.integers(1, rows, size=world_size)) % rows
    angles = chance.uniform(0, 2 * math.pi, world_size)
    weights = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    for one, other, (cosine, sine) in zip(first, second, weights, strict=True):
        dense = centre + cosine * residuals[one] + sine * residuals[other]
        yield dense + (1 + SPARSE_SCALES * cosine) * sparse[one]


def _centre_and_residuals(gradients: Gradients) -> tuple[Gradients, Gradients]:
    """The mean without its noise, and residuals with the unbiased variance."""
    rows = len(gradients)
    mean = gradients.mean(axis=0, dtype=np.float64)
    residuals = (gradients - mean) * math.sqrt(rows / (rows - 1))
    centre = _less_noise(mean, np.mean(residuals**2, axis=0) / rows)
    return centre.astype(np.float32), residuals.astype(np.float32)


def _less_noise(mean: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shrinks a mean of few micro-batches to the length that the true one has.

    Ranks share the mean, so with their number its noise would grow as if it were gradient, and
    the loss in it would look small: by half, where the noise of one micro-batch is ten times
    the mean. Clear elements stay, because a ring loses most in them; the others shrink by one
    factor (James, W. and Stein, C. (1961), Estimation with quadratic loss. Berkeley Symposium 1,
    361-379).

    Args:
        mean: Over micro-batches, shape (elements,).
        variance: Of that mean, likewise.
    """
    faint = mean**2 <= CLEAR**2 * variance
    length, noise = float(np.sum(mean[faint] ** 2)), float(np.sum(variance[faint]))
    factor = math.sqrt(max(0.0, 1 - noise / length)) if length else 0.0
    return np.where(faint, factor * mean, mean)


def _ring(contributions: Iterator[Gradients], rounded: Rounding) -> Gradients:
    # A real ring starts each chunk at another rank; the order of the ranks is random anyway.
    total = rounded(next(contributions))
    for own in contributions:
        total = rounded(total + rounded(own))
    return total


def _tree(contributions: Iterator[Gradients], rounded: Rounding) -> Gradients:
    # Partial sums with the number of ranks in them: two of a size merge at once, as the carries
    # of a binary counter do, so only about log2 of the world size are held.
    partial: list[tuple[int, Gradients]] = []
    for own in contributions:
        count, total = 1, rounded(own)
        while partial and partial[-1][0] == count:
            total = rounded(partial.pop()[1] + total)
            count *= 2
        partial.append((count, total))
    _, total = partial.pop()
    while partial:
        total = rounded(partial.pop()[1] + total)
    return total


def _fp32_accumulate(contributions: Iterator[Gradients], rounded: Rounding) -> Gradients:
    total = rounded(next(contributions)).copy()
    for own in contributions:
        total += rounded(own)
    return rounded(total)


SUMS: Mapping[Algorithm, Callable[[Iterator[Gradients], Rounding], Gradients]] = {
    "ring": _ring,
    "tree": _tree,
    "fp32-accumulate": _fp32_accumulate,
}


def error_of_sum(
    contributions: Iterable[Gradients], wire: WireDtype, algorithm: Algorithm
) -> float:
    """``||sum on the wire - exact sum|| / ||exact sum||``; exact is in float64.

    Args:
        contributions: The gradient of each rank, float32, shape (elements,); at least one.
        wire: Dtype between the ranks.
        algorithm: ``ring`` passes one partial sum along and rounds at every hop, ``tree`` adds
            in pairs and rounds every sum, ``fp32-accumulate`` rounds each contribution and
            the result.

    Returns:
        The error; infinite where the sum is not finite or should vanish and does not.
    """
    exact = np.zeros(1)

    def watched() -> Iterator[Gradients]:
        nonlocal exact
        for own in contributions:
            exact = exact + own
            yield own

    with np.errstate(over="ignore", invalid="ignore"):
        difference = SUMS[algorithm](watched(), ROUNDINGS[wire]) - exact
        lost, whole = float(np.linalg.norm(difference)), float(np.linalg.norm(exact))
    if not math.isfinite(lost) or (lost and not whole):
        return math.inf
    return lost / whole if lost else 0.0


def reduction_error(
    gradients: Gradients,
    world_size: int,
    wire: WireDtype,
    algorithm: Algorithm,
    *,
    seed: int = 0,
    scale: float = 1.0,
) -> float:
    """Predicts the relative error of a gradient summed over ``world_size`` ranks.

    Args:
        gradients: Of single micro-batches in fp32, shape (micro_batches, elements).
        world_size: Ranks of the real job.
        wire: As in `error_of_sum`.
        algorithm: Likewise.
        seed: As in `resample`.
        scale: What gradients are multiplied by before they are rounded: the loss scale, over
            the world size where the job divides first. Matters for fp16 alone.
    """
    factor = np.float32(scale)
    ranks = (own * factor for own in resample(gradients, world_size, seed=seed))
    return error_of_sum(ranks, wire, algorithm)


def fp16_scale(gradients: Gradients, world_size: int) -> float:
    """The largest power of two at which no sum over the ranks can overflow fp16.

    A dynamic loss scale settles near this one. Where a job divides first, the gradients of one
    rank may reach the maximum before they are divided; where it sums first, their sum may.
    """
    largest = FP16_HEADROOM * world_size * float(np.abs(gradients).max(initial=0.0))
    if not (largest and math.isfinite(largest)):
        return 1.0
    _, exponent = math.frexp(FP16_MAX / largest)
    return 2.0 ** min(exponent - 1, 127)  # float32 has no higher power of two


def predict(
    sample: GradientSample | Gradients,
    world_size: int,
    wires: Sequence[WireDtype],
    *,
    seed: int = 0,
    scale: float | None = None,
) -> list[Prediction]:
    """Predicts every algorithm for each wire dtype, from the same draws.

    Args:
        sample: Of at least 2 micro-batches, or their gradients as `decode` gives them.
        world_size: Ranks of the real job.
        wires: Dtypes to predict, in the order of the result.
        seed: As in `resample`.
        scale: As in `reduction_error`, for fp16; None for that of `fp16_scale`.
    """
    gradients = decode(sample) if isinstance(sample, GradientSample) else sample
    settled = fp16_scale(gradients, world_size) if scale is None else scale
    predictions = []
    for wire in wires:
        factor = settled if wire == "fp16" else 1.0
        ring, tree, accumulate = (
            reduction_error(gradients, world_size, wire, algorithm, seed=seed, scale=factor)
            for algorithm in ALGORITHMS
        )
        predictions.append(Prediction(wire, world_size, ring, tree, accumulate))
    return predictions


def grade(
    prediction: Prediction, *, warn: float = RING_WARNS, refuse: float = RING_REFUSES
) -> Grade:
    """Judges the error of the ring: below ``warn`` it passes, above ``refuse`` it does not."""
    if not prediction.ring <= refuse:
        return "refuse"
    return "pass" if prediction.ring < warn else "warn"


SMALLEST_SHOWN = 1e-4
VERDICTS: Mapping[Grade, str] = {"pass": "is fine", "warn": "is a risk", "refuse": "is refused"}


def sentence(prediction: Prediction, graded: Grade) -> str:
    """The prediction and its grade, for people."""
    return (
        f"{prediction.wire} on the wire at {prediction.world_size:,} ranks {VERDICTS[graded]}: a"
        f" flat ring loses {_percent(prediction.ring)} of the gradient (an upper bound), a tree"
        f" {_percent(prediction.tree)}, fp32 accumulation {_percent(prediction.fp32_accumulate)}."
    )


def _percent(error: float) -> str:
    """Two digits, as in ``0.27 %``."""
    if math.isinf(error):
        return "all"
    if error < SMALLEST_SHOWN:
        return f"less than {100 * SMALLEST_SHOWN:g} %"
    return f"{100 * error:.0f} %" if error >= 0.1 else f"{100 * error:.2g} %"
