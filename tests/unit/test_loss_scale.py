from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.numerics import loss_scale
from autotune.numerics.loss_scale import NEVER, OCCUPIED, Replay, ceil_log2, replay, replay_runs
from autotune.readings import LEAST_POWER, MOST_POWER
from autotune.setup import LossScale, Scaler

SCALERS: tuple[Scaler, ...] = ("deepspeed", "deepspeed-stage-0", "grad-scaler")
NO_SCALE = LEAST_POWER - 1  # a step that overflows at every scale


def policy(power: int, window: int = 1000, hysteresis: int = 1, minimum: int = 1) -> LossScale:
    return LossScale(initial_power=power, window=window, hysteresis=hysteresis, minimum=minimum)


def one(
    scaler: Scaler, tried: LossScale, powers: list[int], *, consecutive: bool = False
) -> Replay:
    """The replay of a single policy."""
    return replay(scaler, [tried], powers, consecutive_hysteresis=consecutive)


@pytest.mark.parametrize(
    ("first", "finite", "hysteresis", "skips"),
    [(16, 10, 2, 7), (32, 14, 2, 19), (32, 14, 1, 18), (16, 10, 1, 6), (10, 10, 2, 0)],
)
def test_deepspeed_skips_at_the_start_what_the_formula_says(
    first: int, finite: int, hysteresis: int, skips: int
) -> None:
    found = one("deepspeed", policy(first, hysteresis=hysteresis), [finite] * 500)
    assert found.startup[0] == found.skipped[0] == skips
    assert found.applied[0] == 500 - skips
    assert found.scale[0] == 2.0**finite
    assert skips == max(0, first - finite) + (hysteresis - 1 if first > finite else 0)


@pytest.mark.parametrize("finite", [5, 14, 16, 20])
@pytest.mark.parametrize("hysteresis", [1, 2, 4])
def test_hysteresis_is_spent_once_at_the_start_and_not_at_every_bit(
    finite: int, hysteresis: int
) -> None:
    found = one("deepspeed", policy(16, hysteresis=hysteresis), [finite] * 100)
    spent = hysteresis - 1 if finite < 16 else 0
    assert found.startup[0] == max(0, 16 - finite) + spent


@pytest.mark.parametrize("scaler", ["deepspeed-stage-0", "grad-scaler"])
def test_stage_0_and_torch_skip_one_step_a_bit_at_the_start(scaler: Scaler) -> None:
    found = one(scaler, policy(16, hysteresis=4), [10] * 100)
    assert found.startup[0] == found.skipped[0] == 6


@pytest.mark.parametrize(
    ("scaler", "window", "hysteresis", "period", "rate"),
    [
        ("deepspeed", 1000, 2, 1003, 0.00199),
        ("deepspeed", 100, 2, 103, 0.0194),
        ("deepspeed", 1000, 1, 1002, 0.000998),
        ("deepspeed-stage-0", 1000, 2, 1002, 0.000998),
        ("grad-scaler", 1000, 1, 1001, 0.000999),
        ("grad-scaler", 100, 1, 101, 0.0099),
    ],
)
def test_steady_gradients_are_skipped_once_a_window(
    scaler: Scaler, window: int, hysteresis: int, period: int, rate: float
) -> None:
    steps = 50 * period
    found = one(scaler, policy(10, window, hysteresis), [10] * steps)
    each = hysteresis if scaler == "deepspeed" else 1
    assert found.skipped[0] == 50 * each
    assert found.startup[0] == 0
    assert found.skipped[0] / steps == each / period == pytest.approx(rate, rel=5e-3)


@pytest.mark.parametrize(
    ("scaler", "extra"), [("deepspeed", 1), ("deepspeed-stage-0", 1), ("grad-scaler", 0)]
)
@pytest.mark.parametrize("bits", [1, 3, 8])
def test_bits_that_were_lost_come_back_one_a_window(scaler: Scaler, extra: int, bits: int) -> None:
    window = 50
    lost = [12 - bit for bit in range(1, bits + 1)]
    # DeepSpeed counts the step after an overflow as the zeroth.
    clean = bits * window + extra
    before = one(scaler, policy(12, window), [*lost, *[MOST_POWER] * (clean - 1)])
    after = one(scaler, policy(12, window), [*lost, *[MOST_POWER] * clean])
    assert before.skipped[0] == after.skipped[0] == bits
    assert before.scale[0] == 2.0**11
    assert after.scale[0] == 2.0**12


def test_deepspeed_gives_up_at_the_first_overflow_at_its_floor() -> None:
    found = one("deepspeed", policy(3), [5, 5, *[NO_SCALE] * 10])
    # Three overflows bring the scale from 8 to 1; the fourth ends it.
    assert found.died_at[0] == 2 + 3
    assert (found.applied[0], found.skipped[0], found.scale[0]) == (2, 4, 1.0)


def test_deepspeed_spends_its_hysteresis_before_it_gives_up() -> None:
    found = one("deepspeed", policy(0, hysteresis=3), [NO_SCALE] * 3)
    assert found.died_at[0] == 2
    assert one("deepspeed", policy(0, hysteresis=3), [NO_SCALE] * 2).died_at[0] == NEVER


def test_a_floor_of_16_is_reached_four_bits_earlier() -> None:
    floors = [policy(10, minimum=1), policy(10, minimum=16)]
    found = replay("deepspeed", floors, [NO_SCALE] * 20)
    assert found.died_at.tolist() == [10, 6]
    assert found.scale.tolist() == [1.0, 16.0]


def test_clean_steps_refill_the_hysteresis_only_where_that_is_switched_on() -> None:
    # Every second step overflows at 2 ** 10 and no lower scale does.
    powers = [9, 10] * 20
    plain = one("deepspeed", policy(10, hysteresis=2), powers)
    refilled = one("deepspeed", policy(10, hysteresis=2), powers, consecutive=True)
    assert (plain.skipped[0], plain.scale[0]) == (2, 2.0**9)
    assert (refilled.skipped[0], refilled.scale[0]) == (20, 2.0**10)


def test_stage_0_ignores_hysteresis() -> None:
    powers = [9, 10, 8, 12, 12, NO_SCALE] * 30
    tried = [policy(16, 4, hysteresis) for hysteresis in (1, 2, 4)]
    found = replay("deepspeed-stage-0", tried, powers)
    assert len(set(found.skipped.tolist())) == len(set(found.scale.tolist())) == 1
    differ = replay("deepspeed", tried, powers)
    assert len(set(differ.skipped.tolist())) == 3


def test_stage_0_sits_at_its_floor_and_says_nothing() -> None:
    found = one("deepspeed-stage-0", policy(5, minimum=4), [NO_SCALE] * 1000)
    assert (found.skipped[0], found.startup[0], found.applied[0]) == (1000, 1000, 0)
    assert (found.scale[0], found.died_at[0]) == (4.0, NEVER)


def test_stage_0_leaves_its_floor_when_a_step_is_finite_again() -> None:
    powers = [*[NO_SCALE] * 100, *[MOST_POWER] * 11]
    found = one("deepspeed-stage-0", policy(2, window=10), powers)
    assert (found.skipped[0], found.applied[0], found.scale[0]) == (100, 11, 2.0)


def test_torch_falls_to_zero_and_dies() -> None:
    # 2 ** 4 down to 2 ** -149, the smallest number of fp32, and once more.
    steps = 4 + 149 + 1
    found = one("grad-scaler", policy(4, minimum=0), [NO_SCALE] * 400)
    assert (found.died_at[0], found.skipped[0], found.scale[0]) == (steps - 1, steps, 0.0)
    almost = one("grad-scaler", policy(4, minimum=0), [NO_SCALE] * (steps - 1))
    assert (almost.died_at[0], almost.scale[0]) == (NEVER, 2.0**-149)


def test_torch_has_no_floor_even_if_the_policy_names_one() -> None:
    powers = [*[NO_SCALE] * 10, *[20] * 10]
    named = one("grad-scaler", policy(4, minimum=16), powers)
    assert named.scale[0] == 2.0**-6
    assert named.died_at[0] == NEVER


def test_a_finite_step_below_the_least_power_tried_does_not_overflow() -> None:
    found = one("grad-scaler", policy(0, minimum=0), [NO_SCALE] * 3 + [LEAST_POWER] * 3)
    assert (found.skipped[0], found.applied[0], found.scale[0]) == (3, 3, 2.0**-3)


def test_nothing_is_applied_after_a_death() -> None:
    found = one("deepspeed", policy(0), [5, NO_SCALE, 5, 5, 5])
    assert (found.applied[0], found.skipped[0], found.died_at[0]) == (1, 1, 1)


def test_skips_before_the_first_applied_step_are_start_up_and_later_ones_are_not() -> None:
    found = one("deepspeed", policy(12), [10, 10, 10, 9, 9])
    assert (found.startup[0], found.skipped[0], found.applied[0]) == (2, 3, 2)


def test_applied_steps_are_counted_at_the_scale_that_they_were_taken_at() -> None:
    found = one("grad-scaler", policy(10, window=3), [11] * 9)
    # Three steps at 2 ** 10, three at 2 ** 11, a skip, two at 2 ** 11 again.
    counted = {
        power: count
        for power, count in zip(OCCUPIED, found.occupancy[0].tolist(), strict=True)
        if count
    }
    assert counted == {10: 3, 11: 5}
    assert (found.skipped[0], found.applied[0]) == (1, 8)


def test_scales_far_below_all_powers_count_at_the_lowest() -> None:
    found = one("grad-scaler", policy(0, window=1000, minimum=0), [NO_SCALE] * 60 + [10] * 5)
    assert found.scale[0] == 2.0**-60
    assert found.occupancy[0].tolist() == [5] + [0] * (len(OCCUPIED) - 1)


def test_a_scale_between_two_powers_overflows_and_counts_as_the_upper() -> None:
    # From 4 down to the floor of 3: above 2 ** 1, not above 2 ** 2.
    found = one("deepspeed", policy(2, minimum=3), [1, 2, 2, 1])
    assert (found.skipped[0], found.applied[0], found.died_at[0]) == (2, 2, 3)
    assert found.occupancy[0, 2 - OCCUPIED[0]] == 2


@pytest.mark.parametrize("scaler", SCALERS)
def test_a_policy_that_never_overflows_skips_nothing_and_doubles_every_window(
    scaler: Scaler,
) -> None:
    found = one(scaler, policy(0, window=10), [MOST_POWER] * 101)
    assert (found.skipped[0], found.applied[0], found.died_at[0]) == (0, 101, NEVER)
    assert found.scale[0] == 2.0**10


def test_a_scale_above_the_largest_power_tried_counts_as_an_overflow() -> None:
    found = one("deepspeed", policy(MOST_POWER, window=5), [MOST_POWER] * 7)
    assert (found.applied[0], found.skipped[0]) == (6, 1)


@pytest.mark.parametrize("scaler", SCALERS)
def test_an_empty_trace_changes_nothing(scaler: Scaler) -> None:
    found = replay(scaler, [policy(7), policy(9)], [])
    assert found.scale.tolist() == [2.0**7, 2.0**9]
    assert found.skipped.tolist() == found.applied.tolist() == [0, 0]
    assert found.died_at.tolist() == [NEVER, NEVER]
    assert found.occupancy.sum() == 0


@pytest.mark.parametrize("scaler", SCALERS)
def test_no_policies_give_empty_arrays(scaler: Scaler) -> None:
    found = replay(scaler, [], [3, 4, 5])
    assert found.skipped.shape == (0,)
    assert found.occupancy.shape == (0, len(OCCUPIED))


def drawn(seed: int, steps: int = 400) -> list[int]:
    """Gradients that wander, with some steps that nothing saves."""
    chance = np.random.default_rng(seed)
    powers = np.clip(12 + chance.normal(scale=2, size=steps), 0, MOST_POWER).astype(int)
    powers[chance.random(steps) < 0.02] = NO_SCALE
    return [int(power) for power in powers]


TRIED = [
    policy(power, window, hysteresis, minimum)
    for power in (0, 8, 16, 32)
    for window in (1, 7, 100)
    for hysteresis in (1, 3)
    for minimum in (1, 16)
]


def same(one: Replay, other: Replay) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in Replay.__slots__
    )


@pytest.mark.parametrize("scaler", SCALERS)
def test_one_policy_alone_goes_as_among_many(scaler: Scaler) -> None:
    powers = drawn(0)
    many = replay(scaler, TRIED, powers)
    assert len(set(many.skipped.tolist())) > 3
    for place, tried in enumerate(TRIED):
        alone = replay(scaler, [tried], powers)
        picked = {name: getattr(many, name)[[place]] for name in Replay.__slots__}
        assert same(alone, Replay(**picked)), tried


@pytest.mark.parametrize("scaler", SCALERS)
@pytest.mark.parametrize("entries", [1, 10_000, 2**25])
def test_several_runs_at_once_go_as_each_alone(
    scaler: Scaler, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The memory that is allowed decides how many are taken together.
    monkeypatch.setattr(loss_scale, "MOST_ENTRIES", entries)
    runs = np.array([drawn(seed) for seed in range(5)])
    found = replay_runs(scaler, TRIED, runs)
    assert len(found) == 5
    for run, together in zip(runs, found, strict=True):
        assert same(together, replay(scaler, TRIED, run))
    assert not same(found[0], found[1])


def test_the_same_policy_twice_goes_the_same_way_twice() -> None:
    found = replay("deepspeed", [policy(16, 7), replace(policy(16, 7))], drawn(1))
    assert found.skipped[0] == found.skipped[1] > 0


def test_the_upper_power_of_two_of_a_scale() -> None:
    scales = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 0.5, 0.3, 2.0**32, 2.0**-149])
    assert ceil_log2(scales).tolist() == [0, 1, 2, 2, 3, -1, -1, 32, -149]
