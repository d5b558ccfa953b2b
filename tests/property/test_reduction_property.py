from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from autotune.numerics.reduction import (
    ALGORITHMS,
    FP16_MAX,
    Algorithm,
    Gradients,
    error_of_sum,
    fp16_scale,
    grade,
    predict,
    reduction_error,
    resample,
    round_to_bf16,
    round_to_fp16,
)
from autotune.setup import WIRE_DTYPES, WireDtype

HALF_STEPS: dict[WireDtype, float] = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}

SHAPES = st.tuples(st.integers(2, 6), st.integers(1, 8))
# Large enough that no sum leaves the normal range of bf16, and spread over eight bits.
MODERATE = arrays.arrays(
    np.float32, SHAPES, elements=st.floats(0.0625, 16.0, width=32).map(np.float32)
)
ANY = arrays.arrays(
    np.float32,
    SHAPES,
    elements=st.floats(-(2.0**60), 2.0**60, width=32).map(np.float32),
)


def finite(bits: int) -> bool:
    return bits >> 23 & 0xFF != 0xFF


BITS = st.lists(
    st.integers(0, 2**32 - 1).filter(finite) | st.integers(0, 2**23 - 1), min_size=1, max_size=64
)


def from_bits(bits: list[int]) -> Gradients:
    return np.array(bits, dtype=np.uint32).view(np.float32)


def bits_of(values: Gradients) -> list[int]:
    return list(map(int, values.view(np.uint32)))


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1 + 2.0**-8, 1.0),
        (1 + 2.0**-8 + 2.0**-20, 1 + 2.0**-7),
        (1 + 3 * 2.0**-8, 1 + 2.0**-6),
        (-1 - 2.0**-8, -1.0),
        (0.0, 0.0),
        (math.inf, math.inf),
        (3.4e38, math.inf),
    ],
)
def test_bf16_rounds_to_nearest_and_ties_to_even(value: float, rounded: float) -> None:
    assert round_to_bf16(np.array([value], dtype=np.float32))[0] == rounded


@given(BITS)
def test_bf16_is_torchs_on_every_finite_pattern(bits: list[int]) -> None:
    """Those below 2 ** 23 are subnormal."""
    values = from_bits(bits)
    theirs = torch.from_numpy(values.copy()).to(torch.bfloat16).float().numpy()
    assert bits_of(round_to_bf16(values)) == bits_of(theirs)


@given(BITS)
def test_fp16_is_torchs_on_every_finite_pattern(bits: list[int]) -> None:
    values = from_bits(bits)
    theirs = torch.from_numpy(values.copy()).to(torch.float16).float().numpy()
    assert bits_of(round_to_fp16(values)) == bits_of(theirs)


@given(BITS)
def test_what_is_rounded_does_not_round_again(bits: list[int]) -> None:
    for rounded in (round_to_bf16, round_to_fp16):
        once = rounded(from_bits(bits))
        assert bits_of(rounded(once)) == bits_of(once)


@given(arrays.arrays(np.float32, (2, 16), elements=st.floats(-64, 64, width=32).map(np.float32)))
def test_adding_in_fp32_and_rounding_is_torchs_addition_in_the_wire_dtype(
    pair: Gradients,
) -> None:
    for rounded, dtype in ((round_to_bf16, torch.bfloat16), (round_to_fp16, torch.float16)):
        left, right = (torch.from_numpy(row.copy()).to(dtype) for row in pair)
        ours = rounded(rounded(pair[0]) + rounded(pair[1]))
        assert np.array_equal(ours, (left + right).float().numpy())


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 96])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_rank_is_summed_once(algorithm: Algorithm, ranks: int) -> None:
    """Powers of two do not round, and a missing one would show."""
    ones = np.ones((ranks, 3), dtype=np.float32)
    assert error_of_sum(ones, "fp32", algorithm) == 0.0
    powers = np.float32(2.0) ** np.arange(min(ranks, 8), dtype=np.float32)[:, None]
    assert error_of_sum(powers, "bf16", algorithm) == 0.0


@given(MODERATE, st.sampled_from(ALGORITHMS))
def test_sums_of_one_sign_lose_at_most_half_a_step_at_every_rounding(
    gradients: Gradients, algorithm: Algorithm
) -> None:
    """With n ranks a contribution is rounded at most n times on its way, and once before."""
    for wire, half_step in HALF_STEPS.items():
        bound = (1 + half_step) ** (len(gradients) + 1) - 1
        assert error_of_sum(gradients, wire, algorithm) <= bound


@given(ANY, st.integers(1, 40), st.integers(0, 2**32))
@settings(deadline=None)
def test_fp16_never_overflows_at_its_own_scale(
    gradients: Gradients, world_size: int, seed: int
) -> None:
    scale = fp16_scale(gradients, world_size)
    drawn = np.stack(list(resample(gradients, world_size, seed=seed)))
    assert np.abs(drawn.astype(np.float64)).sum(axis=0).max() * scale <= FP16_MAX


@given(ANY, st.integers(1, 40), st.integers(0, 2**32))
@settings(deadline=None)
def test_a_prediction_repeats_and_is_an_error(
    gradients: Gradients, world_size: int, seed: int
) -> None:
    found = predict(gradients, world_size, WIRE_DTYPES, seed=seed)
    assert found == predict(gradients, world_size, WIRE_DTYPES, seed=seed)
    for item in found:
        assert min(item.ring, item.tree, item.fp32_accumulate) >= 0
        assert grade(item) in ("pass", "warn", "refuse")


@given(st.integers(0, 2**32), st.floats(0.0, 3.0))
@settings(deadline=None, max_examples=25)
def test_eight_times_the_ranks_lose_more_on_a_ring(seed: int, snr: float) -> None:
    chance = np.random.default_rng(seed)
    noise = chance.standard_normal((16, 400), dtype=np.float32)
    gradients = noise + np.float32(snr) * chance.standard_normal(400, dtype=np.float32)
    few, many, more = (
        reduction_error(gradients, ranks, "bf16", "ring", seed=seed) for ranks in (4, 32, 256)
    )
    assert few < many < more
