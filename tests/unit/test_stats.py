import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.decide.stats import (
    POWER,
    Estimate,
    constant,
    estimate,
    holm,
    launches_for,
    power,
    resolvable,
    root_mean_square,
    slower_p,
)

# Two-sided 95 % quantiles of Student's t, from the printed tables.
T_95 = {1: 12.706, 2: 4.303, 5: 2.571, 7: 2.365, 29: 2.045}
FINITE = st.floats(-1e3, 1e3)


def ramp(count: int) -> list[float]:
    """0, 1, 2, ..: the variance of n successive numbers is n (n + 1) / 12."""
    return [float(number) for number in range(count)]


@pytest.mark.parametrize("freedom", T_95)
def test_the_interval_is_that_of_the_t_tables(freedom: int) -> None:
    count = freedom + 1
    half = T_95[freedom] * math.sqrt(count * (count + 1) / 12 / count)
    found = estimate(ramp(count), 0.95)
    assert found.mean == freedom / 2
    assert found.low == pytest.approx(freedom / 2 - half, rel=1e-3, abs=1e-3)
    assert found.high == pytest.approx(freedom / 2 + half, rel=1e-3, abs=1e-3)
    assert (found.launches, found.confidence) == (count, 0.95)


def test_a_higher_confidence_takes_the_quantile_of_its_own() -> None:
    """t(.995, 4) = 4.604 in the tables."""
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0], 0.99)
    assert found.high - found.mean == pytest.approx(4.604 * math.sqrt(2.5 / 5), rel=1e-3)


def test_an_estimate_speaks_of_ratios_too() -> None:
    found = estimate([math.log(1.1), math.log(1.1), math.log(1.1)], 0.95)
    assert found.ratio == pytest.approx(1.1)
    assert found.interval == pytest.approx((1.1, 1.1))


def test_values_that_do_not_vary_are_their_own_interval() -> None:
    found = estimate([0.3] * 6, 0.95)
    assert (found.low, found.high) == (found.mean, found.mean)
    assert found.excludes(0.0)
    assert not found.excludes(found.mean)


def test_rounding_is_no_variation() -> None:
    assert constant([0.1 + 0.2, 0.3, 0.3])
    assert constant([1e6, 1e6 * (1 + 1e-15)])
    assert not constant([0.3, 0.3 + 1e-8])


@pytest.mark.parametrize(
    ("log_ratio", "excluded"), [(-0.1, True), (0.0, False), (0.5, False), (1.0, False), (1.1, True)]
)
def test_an_interval_excludes_what_lies_outside_of_it(log_ratio: float, excluded: bool) -> None:
    found = Estimate(mean=0.5, low=0.0, high=1.0, launches=2, confidence=0.95)
    assert found.excludes(log_ratio) is excluded


def test_slower_is_a_one_sided_p() -> None:
    """Mean -1, standard error .5, so t = -2 with 3 degrees: the tables give .0697 below it."""
    values = [-1 + deviation for deviation in (-(1.5**0.5), 1.5**0.5, 0.0, 0.0)]
    assert slower_p(values) == pytest.approx(0.0697, abs=2e-4)
    assert slower_p([-value for value in values]) == pytest.approx(1 - 0.0697, abs=2e-4)


def test_differences_that_do_not_vary_are_slower_only_when_they_are_below_zero() -> None:
    assert slower_p([-0.1] * 3) == 0.0
    assert slower_p([0.1] * 3) == 1.0
    assert slower_p([0.0] * 3) == 1.0


def test_holm_follows_the_worked_example() -> None:
    """.01 <= .05/4 and .015 <= .05/3; .03 > .05/2, so it and .04 stay."""
    assert holm([0.01, 0.04, 0.03, 0.015], 0.05) == (True, False, False, True)


def test_holm_stops_at_the_first_p_value_that_stays() -> None:
    """.04 alone would pass at .05/1, but .03 did not at .05/2."""
    assert holm([0.04, 0.03], 0.05) == (False, False)
    assert holm([0.04, 0.025], 0.05) == (True, True)


def test_holm_of_nothing_rejects_nothing() -> None:
    assert holm([], 0.05) == ()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(1e-3, 0.5))
@settings(deadline=None)
def test_holm_rejects_what_bonferroni_does_and_never_more_than_without_correction(
    p_values: list[float], level: float
) -> None:
    for p, rejected in zip(p_values, holm(p_values, level), strict=True):
        if p <= level / len(p_values):
            assert rejected
        if p > level:
            assert not rejected


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.floats(1e-3, 0.5), st.randoms())
@settings(deadline=None)
def test_holm_does_not_depend_on_the_order(
    p_values: list[float], level: float, chance: random.Random
) -> None:
    order = list(range(len(p_values)))
    chance.shuffle(order)
    shuffled = holm([p_values[index] for index in order], level)
    found = holm(p_values, level)
    assert [found[index] for index in order] == list(shuffled)


@pytest.mark.parametrize(
    ("distance", "spread", "launches", "confidence"),
    [(0.02, 0.02, 10, 0.95), (0.02, 0.02, 20, 0.98), (0.01, 0.03, 30, 0.95)],
)
def test_power_is_how_often_simulated_intervals_lie_beyond_the_bound(
    distance: float, spread: float, launches: int, confidence: float
) -> None:
    chance = random.Random(7)
    repeats = 800
    beyond = 0
    for _ in range(repeats):
        values = [chance.gauss(distance, spread) for _ in range(launches)]
        beyond += estimate(values, confidence).low > 0
    expected = power(distance, spread, launches, confidence)
    error = math.sqrt(expected * (1 - expected) / repeats)
    assert beyond / repeats == pytest.approx(expected, abs=4 * error)


def test_without_noise_every_difference_is_resolved_and_none_is_not() -> None:
    assert power(1e-6, 0.0, 2, 0.95) == 1.0
    assert power(0.0, 0.0, 2, 0.95) == 0.0
    assert resolvable(0.0, 6, 0.95) == 0.0


@pytest.mark.parametrize("spread", [1e-15, 1e-12])
def test_a_spread_of_mere_rounding_takes_no_more_launches_than_none(spread: float) -> None:
    """As in a replay of one record a setup, where ratios are equal but for rounding."""
    assert launches_for(0.5, 0.0, 0.95, least=6, most=30) == 6
    assert launches_for(0.5, spread, 0.95, least=6, most=30) == 6


def test_at_distance_zero_the_power_is_half_of_what_the_interval_leaves_out() -> None:
    assert power(0.0, 0.02, 8, 0.95) == pytest.approx(0.025)


def test_power_grows_with_distance_and_launches_and_falls_with_spread_and_confidence() -> None:
    start = power(0.02, 0.02, 10, 0.95)
    assert power(0.03, 0.02, 10, 0.95) > start
    assert power(0.02, 0.02, 12, 0.95) > start
    assert power(0.02, 0.03, 10, 0.95) < start
    assert power(0.02, 0.02, 10, 0.98) < start


@given(
    st.floats(0.002, 0.1),
    st.floats(0.005, 0.05),
    st.sampled_from([0.95, 0.975, 0.9833]),
)
@settings(deadline=None)
def test_the_planned_launches_are_the_fewest_with_enough_power(
    distance: float, spread: float, confidence: float
) -> None:
    planned = launches_for(distance, spread, confidence, least=6, most=30)
    assert 6 <= planned <= 30
    if planned < 30:
        assert power(distance, spread, planned, confidence) >= POWER
    if planned > 6:
        assert power(distance, spread, planned - 1, confidence) < POWER


@given(st.floats(0.001, 0.1), st.integers(3, 30), st.sampled_from([0.95, 0.99]))
@settings(deadline=None)
def test_what_launches_resolve_they_resolve_with_exactly_the_power(
    spread: float, launches: int, confidence: float
) -> None:
    distance = resolvable(spread, launches, confidence)
    assert power(distance, spread, launches, confidence) == pytest.approx(POWER, abs=1e-6)
    fewest = launches_for(distance * 1.001, spread, confidence, least=2, most=40)
    assert fewest == launches


def test_more_launches_resolve_less() -> None:
    found = [resolvable(0.02, launches, 0.95) for launches in range(2, 31)]
    assert all(later < earlier for earlier, later in pairwise(found))


def test_the_root_mean_square_is_a_spread_around_zero() -> None:
    assert root_mean_square([3.0, -4.0]) == pytest.approx(math.sqrt(12.5))


@given(st.lists(FINITE, min_size=2, max_size=12), st.sampled_from([0.9, 0.95, 0.99]))
@settings(deadline=None)
def test_an_interval_lies_symmetrically_around_the_mean(
    values: list[float], confidence: float
) -> None:
    found = estimate(values, confidence)
    assert found.low <= found.mean <= found.high
    scale = max(1.0, *map(abs, values))
    assert found.high - found.mean == pytest.approx(found.mean - found.low, abs=1e-9 * scale)
