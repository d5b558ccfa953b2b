from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.numerics.loss_scale import OCCUPIED, replay
from autotune.numerics.policy import (
    Limits,
    PolicyScore,
    block_bootstrap,
    choose,
    describe,
    evaluate,
    excesses,
    expected_skips,
    explain,
    infeasible,
    lost_norms,
    stressed,
)
from autotune.readings import LEAST_POWER
from autotune.scales import DEFAULTS
from autotune.setup import LossScale, Scaler
from tests.readings import make_trace

LIMITS = Limits()
USUAL = LossScale()
TORCH = DEFAULTS["grad-scaler"]


def make_score(policy: LossScale = USUAL, **changes: Any) -> PolicyScore:
    """A policy that keeps to every limit."""
    sound: dict[str, Any] = {
        "policy": policy,
        "useful_step_fraction": 0.998,
        "interval": (0.997, 0.999),
        "stress_useful_step_fraction": 0.99,
        "lost_norm": 1e-5,
        "headroom_bits": 3,
        "skipped_share": 0.002,
        "died": False,
    }
    return PolicyScore(**{**sound, **changes})


def starting_at(power: int, **changes: int) -> LossScale:
    return replace(USUAL, initial_power=power, **changes)


# The bootstrap.


def test_a_drawn_run_begins_with_the_trace_and_has_the_length_asked_for() -> None:
    trace = list(range(20))
    run = block_bootstrap(trace, 1003, seed=3)
    assert run[:20].tolist() == trace
    assert len(run) == 1003


@pytest.mark.parametrize("steps", [0, 1, 7, 20])
def test_a_run_no_longer_than_the_trace_is_its_beginning(steps: int) -> None:
    assert block_bootstrap(range(20), steps, seed=0).tolist() == list(range(steps))


def test_a_seed_draws_the_same_run_and_another_seed_another() -> None:
    first, again, other = (block_bootstrap(range(30), 500, seed=seed) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_blocks_are_as_long_as_the_root_of_the_trace_and_cross_its_end() -> None:
    drawn = block_bootstrap(range(100), 5000, seed=0, as_measured=False).reshape(-1, 10)
    assert np.array_equal((drawn[:, 1:] - drawn[:, :-1]) % 100, np.ones((500, 9)))
    assert any(block[0] > block[-1] for block in drawn)  # around the end


def test_every_step_of_the_trace_is_equally_likely() -> None:
    drawn = block_bootstrap(range(25), 100_000, seed=0, as_measured=False)
    counts = np.bincount(drawn, minlength=25)
    # 20,000 blocks hold each step with probability 1 / 5: 4,000 each, give or take 57.
    assert np.all(np.abs(counts - 4000) < 5 * 57)


def test_a_run_that_is_not_as_measured_is_drawn_from_the_first_step() -> None:
    drawn = block_bootstrap(range(100), 100, seed=0, as_measured=False)
    assert drawn.tolist() != list(range(100))
    assert len(drawn) == 100


def test_a_trace_of_one_step_repeats_it() -> None:
    assert block_bootstrap([7], 5, seed=0).tolist() == [7] * 5


# The stress.


def test_stress_is_a_jump_of_four_bits_then_a_fall_of_eight_that_comes_back() -> None:
    loss = 20 - stressed(np.full(4000, 20))
    assert not loss[:1000].any()
    assert set(loss[1000:2000].tolist()) == {4}
    assert loss[2000:2008].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert loss[2008:2808].tolist() == [bits for bits in range(8, 0, -1) for _ in range(100)]
    assert not loss[2808:].any()


def test_stress_stops_at_the_least_power_and_leaves_broken_steps_alone() -> None:
    run = np.tile([3, LEAST_POWER - 1], 500)
    found = stressed(run)
    assert found.min() == LEAST_POWER - 1
    assert set(found[1::2].tolist()) == {LEAST_POWER - 1}
    assert min(found[::2].tolist()) == LEAST_POWER


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 13])
def test_a_short_run_is_stressed_as_far_as_it_goes(steps: int) -> None:
    run = np.full(steps, 20)
    found = stressed(run)
    assert len(found) == steps
    assert steps < 2 or found[steps // 2] == 19  # the fall has begun
    assert np.array_equal(run, np.full(steps, 20))  # the run itself is as before


# What is lost to underflow.


def histogram(gradient: NDArray[np.float64], lowest: int) -> dict[str, Any]:
    """The gradient as a trace counts it, one bin a bit."""
    bins = np.floor(np.log2(np.abs(gradient))).astype(int) - lowest
    assert bins.min() >= 0
    return {
        "lowest_bin": lowest,
        "counts": tuple(np.bincount(bins).tolist()),
        "squares": tuple(np.bincount(bins, weights=gradient**2).tolist()),
    }


def vanished(gradient: NDArray[np.float64], power: int) -> float:
    """Norm of the elements that fp16 rounds to zero at a scale, over the whole norm."""
    with np.errstate(over="ignore"):
        gone = (gradient * 2.0**power).astype(np.float16) == 0
    return float(np.linalg.norm(gradient[gone]) / np.linalg.norm(gradient))


@pytest.mark.parametrize("level", [-8, -20, -30, -45])
def test_the_lost_norm_is_that_of_the_elements_that_fp16_rounds_to_zero(level: int) -> None:
    chance = np.random.default_rng(level + 100)
    gradient = chance.normal(size=20_000) * 2.0 ** (level + 2 * chance.normal(size=20_000))
    trace = make_trace(**histogram(gradient, -90))
    lost = dict(zip(OCCUPIED, lost_norms(trace), strict=True))
    assert any(0 < norm < 1 for norm in lost.values())
    for power, norm in lost.items():
        assert norm == pytest.approx(vanished(gradient, power), rel=1e-9, abs=1e-12)


def test_a_larger_scale_never_loses_more() -> None:
    lost = lost_norms(make_trace(lowest_bin=-40, counts=(1,) * 30, squares=(1.0,) * 30))
    assert lost == sorted(lost, reverse=True)
    assert lost[0] > lost[-1] == 0


def test_gradients_that_are_all_zero_lose_nothing() -> None:
    lost = lost_norms(make_trace(counts=(0, 0, 0), squares=(0.0, 0.0, 0.0)))
    assert lost == [0.0] * len(OCCUPIED)


# Scores.


def test_a_score_counts_the_steps_of_the_replay() -> None:
    # Start at 2 ** 16, finite up to 2 ** 14: 3 skips at the start; then 2 of each 1,003 steps.
    (score,) = evaluate("deepspeed", [USUAL], make_trace(14), 2000)
    assert score.policy == USUAL
    assert score.useful_step_fraction == pytest.approx(1995 / 2000)
    assert score.interval == pytest.approx((1995 / 2000, 1995 / 2000))
    assert score.skipped_share == pytest.approx(2 / 2000)
    assert (score.headroom_bits, score.lost_norm, score.died) == (-2, 0.0, False)


def test_headroom_is_below_the_smallest_of_the_largest_finite_powers() -> None:
    trace = make_trace(finite_powers=(14, 15, 11, 14))
    (score,) = evaluate("deepspeed", [starting_at(8)], trace, 100)
    assert score.headroom_bits == 3


def test_the_stress_is_replayed_on_the_first_run() -> None:
    powers = process(np.random.default_rng(0), 60)
    tried, trace = starting_at(12, window=50), make_trace(finite_powers=powers)
    (score,) = evaluate("deepspeed", [tried], trace, 4000, seed=5)
    run = stressed(block_bootstrap(trace.finite_powers, 4000, seed=5))
    applied = replay("deepspeed", [tried], run).applied[0]
    assert score.stress_useful_step_fraction == applied / 4000 != score.useful_step_fraction
    other = stressed(block_bootstrap(trace.finite_powers, 4000, seed=6))
    assert applied != replay("deepspeed", [tried], other).applied[0]


def test_the_interval_holds_the_mean_and_has_a_width_where_runs_differ() -> None:
    chance = np.random.default_rng(0)
    trace = make_trace(finite_powers=tuple(chance.integers(8, 16, size=60).tolist()))
    (score,) = evaluate("deepspeed", [starting_at(10, window=20)], trace, 2000)
    low, high = score.interval
    assert low < score.useful_step_fraction < high


def test_a_scale_that_is_too_small_loses_what_the_histogram_says() -> None:
    # All of the gradient lies in [2 ** -30, 2 ** -29): gone below a scale of 2 ** 5.
    trace = make_trace(14, lowest_bin=-30, counts=(10,), squares=(1.0,))
    low, high = evaluate("deepspeed", [starting_at(4), starting_at(5)], trace, 500)
    assert (low.lost_norm, high.lost_norm) == (1.0, 0.0)


def test_the_lost_norm_is_the_average_over_the_applied_steps() -> None:
    trace = make_trace(14, lowest_bin=-30, counts=(10,), squares=(1.0,))
    (score,) = evaluate("deepspeed", [starting_at(4, window=99)], trace, 400)
    assert score.lost_norm == pytest.approx(100 / 400)  # at 2 ** 4 until the first growth


def test_scores_come_in_the_order_of_the_policies() -> None:
    policies = [starting_at(power) for power in (30, 4, 16)]
    scores = evaluate("deepspeed", policies, make_trace(14), 300)
    assert [score.policy for score in scores] == policies
    assert [score.headroom_bits for score in scores] == [-16, 10, -2]
    (alone,) = evaluate("deepspeed", policies[1:2], make_trace(14), 300)
    assert alone == scores[1]


def test_no_policies_have_no_scores() -> None:
    assert evaluate("deepspeed", [], make_trace(), 100) == []


def test_a_policy_that_dies_under_stress_alone_is_infeasible() -> None:
    # Finite up to 2 ** 6; the collapse takes eight bits, the floor is 2 ** 4.
    trace, tried = make_trace(6), starting_at(4, minimum=16)
    assert replay("deepspeed", [tried], [6] * 4000).died_at[0] == -1
    (score,) = evaluate("deepspeed", [tried], trace, 4000)
    assert score.useful_step_fraction > 0.99
    assert score.died
    assert infeasible(score, LIMITS) == "the library gives up at its floor of 16"


def test_a_policy_that_dies_in_a_replay_is_infeasible() -> None:
    trace = make_trace(finite_powers=(10,) * 30 + (LEAST_POWER - 1,) * 30)
    (score,) = evaluate("deepspeed", [starting_at(8)], trace, 60)
    assert score.died
    assert excesses(score, LIMITS)["survives"] > 0


# Limits.


def test_a_policy_that_keeps_to_every_limit_is_feasible() -> None:
    score = make_score()
    assert infeasible(score, LIMITS) is None
    assert max(excesses(score, LIMITS).values()) <= 0


def test_a_policy_exactly_at_its_limits_is_feasible() -> None:
    score = make_score(lost_norm=1e-3, headroom_bits=2, skipped_share=5e-3)
    assert infeasible(score, LIMITS) is None
    assert excesses(score, LIMITS) == {
        "lost_norm": 0.0,
        "headroom_bits": 0.0,
        "skipped_share": 0.0,
        "survives": 0.0,
    }


@pytest.mark.parametrize(
    ("changes", "name", "excess"),
    [
        ({"lost_norm": 0.011}, "lost_norm", 0.01),
        ({"headroom_bits": -1}, "headroom_bits", 3.0),
        ({"skipped_share": 0.025}, "skipped_share", 0.02),
        ({"died": True}, "survives", 1.0),
    ],
)
def test_an_excess_says_by_how_much_a_limit_is_broken(
    changes: dict[str, Any], name: str, excess: float
) -> None:
    found = excesses(make_score(**changes), LIMITS)
    assert found.pop(name) == pytest.approx(excess)
    assert max(found.values()) <= 0


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (
            make_score(headroom_bits=1),
            "it starts 1 bit below the largest finite scale, not 2 bits below it",
        ),
        (
            make_score(headroom_bits=0),
            "it starts at the largest finite scale, not 2 bits below it",
        ),
        (
            make_score(headroom_bits=-6, skipped_share=0.1, died=True),
            "it starts 6 bits above the largest finite scale, not 2 bits below it",
        ),
        (make_score(lost_norm=0.0123), "gradients of 1.23 % of the norm vanish, over 0.1 %"),
        (make_score(lost_norm=1.0), "gradients of 100 % of the norm vanish, over 0.1 %"),
        (make_score(skipped_share=0.0194), "it skips 1.94 % of the steps, over 0.5 %"),
        (make_score(died=True), "the library gives up at its floor of 1"),
        (
            make_score(TORCH, died=True),
            "its scale falls to 0, and the weights become NaN",
        ),
    ],
)
def test_the_reason_names_the_limit_that_is_broken(score: PolicyScore, reason: str) -> None:
    assert infeasible(score, LIMITS) == reason


def test_limits_are_those_that_were_given() -> None:
    loose = Limits(lost_norm=0.5, headroom_bits=-10, skipped_share=1.0)
    assert infeasible(make_score(lost_norm=0.4, headroom_bits=-9, skipped_share=0.9), loose) is None


# The choice.


def test_the_policy_with_the_most_useful_steps_is_chosen() -> None:
    better = make_score(starting_at(10), useful_step_fraction=0.999)
    assert choose([make_score(), better], USUAL, LIMITS) is better
    assert choose([better, make_score()], USUAL, LIMITS) is better


def test_a_tie_goes_to_the_frameworks_own() -> None:
    other = make_score(starting_at(10), useful_step_fraction=0.99809)
    own = make_score(useful_step_fraction=0.998)
    assert choose([other, own], USUAL, LIMITS) is own
    apart = replace(other, useful_step_fraction=0.99811)
    assert choose([apart, own], USUAL, LIMITS) is apart


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        # fewest other fields, then the nearest first scale, then the longest window
        (starting_at(4), starting_at(15, window=500)),
        (starting_at(14), starting_at(19)),
        (starting_at(16, window=2000), starting_at(16, window=500)),
    ],
)
def test_of_equal_policies_the_one_nearest_to_the_frameworks_own_is_chosen(
    nearer: LossScale, farther: LossScale
) -> None:
    scores = [make_score(farther), make_score(nearer)]
    chosen = choose(scores, USUAL, LIMITS)
    assert chosen is not None
    assert chosen.policy == nearer
    assert choose(scores[::-1], USUAL, LIMITS) == chosen


@pytest.mark.parametrize(
    "broken",
    [{"lost_norm": 0.1}, {"headroom_bits": 1}, {"skipped_share": 0.02}, {"died": True}],
)
def test_an_infeasible_policy_is_never_chosen(broken: dict[str, Any]) -> None:
    best = make_score(useful_step_fraction=1.0, **broken)
    sound = make_score(starting_at(3, window=100), useful_step_fraction=0.5)
    assert choose([best, sound], USUAL, LIMITS) is sound
    assert choose([best], USUAL, LIMITS) is None


def test_of_no_policies_none_is_chosen() -> None:
    assert choose([], USUAL, LIMITS) is None


# Words.


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (USUAL, "2^16 with window 1,000 and hysteresis 2"),
        (starting_at(12, minimum=16), "2^12 with window 1,000 and hysteresis 2 and floor 16"),
        (TORCH, "2^16 with window 2,000"),
    ],
)
def test_a_policy_is_described_by_the_fields_that_its_scaler_has(
    policy: LossScale, words: str
) -> None:
    assert describe(policy) == words


def test_a_chosen_policy_is_explained_against_the_frameworks_own() -> None:
    chosen = make_score(starting_at(11), useful_step_fraction=0.9981)
    usual = make_score(useful_step_fraction=0.99765, headroom_bits=-3)
    assert explain([chosen, usual], chosen, usual, LIMITS, 20_000) == (
        "Of 2 loss scales replayed over 20,000 steps, 2^11 with window 1,000 and hysteresis 2 "
        "keeps 99.81 % of the steps useful; the framework's own 2^16 with window 1,000 and "
        "hysteresis 2 keeps 99.77 %, but it starts 3 bits above the largest finite scale, not "
        "2 bits below it."
    )


def test_a_sound_default_is_named_without_a_but() -> None:
    chosen = make_score(starting_at(11), useful_step_fraction=0.9991)
    text = explain([chosen, make_score()], chosen, make_score(), LIMITS, 20_000)
    assert text.endswith("hysteresis 2 keeps 99.80 %.")


def test_the_frameworks_own_is_said_to_be_so() -> None:
    assert explain([make_score()] * 3, make_score(), make_score(), LIMITS, 1000) == (
        "Of 3 loss scales replayed over 1,000 steps, 2^16 with window 1,000 and hysteresis 2 "
        "keeps 99.80 % of the steps useful: the framework's own."
    )


def test_where_none_trains_the_nearest_is_named_with_its_fault() -> None:
    high = make_score(starting_at(30), headroom_bits=-5)
    worse = make_score(starting_at(2), lost_norm=0.9)
    least = make_score(starting_at(5), lost_norm=0.2)
    assert explain([high, worse, least], None, high, LIMITS, 1000) == (
        "none of 3 loss scales trains: even 2^5 with window 1,000 and hysteresis 2 fails, because "
        "gradients of 20 % of the norm vanish, over 0.1 %."
    )


def test_no_policies_at_all_are_said_to_be_none() -> None:
    text = explain([], None, make_score(), LIMITS, 1000)
    assert text == "no loss scale of the space starts at or above its own floor."


# Skips that a run should show.


def process(chance: np.random.Generator, steps: int) -> tuple[int, ...]:
    """Gradients that wander around 2 ** 12 as real ones do, with rare bursts."""
    wander = np.zeros(steps)
    for step in range(1, steps):
        wander[step] = 0.9 * wander[step - 1] + chance.normal(scale=0.5)
    bursts = 3 * (chance.random(steps) < 0.01)
    return tuple(np.clip(np.round(12 + wander - bursts), 0, 32).astype(int).tolist())


@pytest.mark.parametrize("scaler", ["deepspeed", "grad-scaler"])
def test_the_interval_contains_what_other_runs_of_the_same_process_skip(scaler: Scaler) -> None:
    tried = replace(DEFAULTS[scaler], window=30)
    chance, steps, held = np.random.default_rng(0), 300, 0
    for trial in range(40):
        trace = make_trace(finite_powers=process(chance, 300))
        expected = expected_skips(scaler, tried, trace, steps=steps, seed=trial)
        skipped = replay(scaler, [tried], process(chance, steps)).skipped[0]
        held += expected.low <= skipped <= expected.high
        assert expected.low <= expected.mean <= expected.high < steps
    assert held >= 36  # of 40, of which a 95 % interval misses 2


@pytest.mark.parametrize(("begins", "goes_on", "skips"), [(4, 20, 4), (20, 4, 0)])
def test_the_interval_holds_the_skips_of_the_trace_itself(
    begins: int, goes_on: int, skips: int
) -> None:
    # One drawn run in 150 has any of the first four steps: too few for a 95 % interval.
    powers = (begins,) * 4 + (goes_on,) * 996
    tried = LossScale(initial_power=16, hysteresis=1)
    expected = expected_skips("deepspeed", tried, make_trace(finite_powers=powers), steps=4)
    assert replay("deepspeed", [tried], powers[:4]).skipped[0] == skips
    assert abs(expected.mean - skips) > 3.8
    assert expected.low <= skips <= expected.high


def test_steps_that_never_overflowed_may_still_do_so_in_three_of_n() -> None:
    expected = expected_skips("deepspeed", starting_at(10), make_trace(14, steps=60), steps=100)
    assert (expected.low, expected.mean) == (0.0, 0.0)
    assert expected.high == pytest.approx(3 / 60 * 100)


def test_a_longer_trace_narrows_what_it_cannot_exclude() -> None:
    highs = [
        expected_skips("deepspeed", starting_at(10), make_trace(14, steps=steps), steps=100).high
        for steps in (30, 300, 3000)
    ]
    assert highs == pytest.approx([10.0, 1.0, 0.1])


def test_skips_never_exceed_the_steps() -> None:
    expected = expected_skips("deepspeed", USUAL, make_trace(14, steps=2), steps=50, probes=4)
    assert expected.high == 4 * 50


def test_probes_of_one_sweep_skip_the_same_steps_each() -> None:
    trace = make_trace(14, steps=200)
    single = expected_skips("deepspeed", USUAL, trace, steps=100)
    four = expected_skips("deepspeed", USUAL, trace, steps=100, probes=4)
    assert (single.low, single.mean) == (3.0, 3.0)
    assert (four.low, four.mean, four.high) == pytest.approx(
        (4 * single.low, 4 * single.mean, 4 * single.high)
    )


def test_a_seed_gives_the_same_interval_and_another_seed_another() -> None:
    trace = make_trace(finite_powers=process(np.random.default_rng(1), 100))

    def found(seed: int) -> Sequence[float]:
        tried = replace(USUAL, window=10)
        expected = expected_skips("deepspeed", tried, trace, steps=500, seed=seed)
        return expected.low, expected.mean, expected.high

    assert found(0) == found(0) != found(1000)
    assert all(math.isfinite(end) for end in found(0))
