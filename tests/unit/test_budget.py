import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.decide.budget import Amount, Costs, allowance, blocks_in
from autotune.decide.race import LEAST_LAUNCHES
from autotune.outcome import PHASES, Phase

COSTS = Costs(launch_seconds=10.0, probe_seconds=2.0)
# Six launches, and one to spare, of a candidate and the baseline under two labels.
LEAST = Amount(7 * (10 + 3 * 2), 21)
AMOUNTS = st.builds(Amount, st.floats(0, 1e6), st.floats(0, 1e4))


@pytest.mark.parametrize(("phase", "share"), [("search", 0.4), ("race", 0.65), ("confirm", 1.0)])
def test_the_phases_end_at_40_65_and_100_percent(phase: Phase, share: float) -> None:
    found = allowance(phase, Amount(10_000, 1_000), COSTS)
    assert found.seconds == pytest.approx(10_000 * share)
    assert found.probes == pytest.approx(1_000 * share)


def test_the_race_leaves_a_smallest_confirmation() -> None:
    found = allowance("race", Amount(200, 40), COSTS)
    assert (found.seconds, found.probes) == (200 - LEAST.seconds, 40 - LEAST.probes)


def test_seconds_and_probes_are_kept_back_each_for_itself() -> None:
    found = allowance("race", Amount(10_000, 40), COSTS)
    assert found.seconds == pytest.approx(6_500)
    assert found.probes == 19


def test_a_budget_below_a_smallest_confirmation_leaves_the_race_nothing() -> None:
    assert not allowance("race", Amount(50, 10), COSTS).covers(Amount(0, 0))


@given(AMOUNTS, st.floats(0, 100), st.floats(0, 100))
@settings(deadline=None)
def test_what_the_race_leaves_always_holds_a_smallest_confirmation(
    budget: Amount, launch_seconds: float, probe_seconds: float
) -> None:
    costs = Costs(launch_seconds, probe_seconds)
    left = budget - allowance("race", budget, costs)
    assert left.seconds >= 7 * (launch_seconds + 3 * probe_seconds) - 1e-6
    assert left.probes >= 21 - 1e-6


def test_the_search_leaves_a_smallest_confirmation_but_a_fifth_is_its_own() -> None:
    found = allowance("search", Amount(150, 30), COSTS)
    assert (found.seconds, found.probes) == (150 - LEAST.seconds, 30 - LEAST.probes)
    found = allowance("search", Amount(100, 20), COSTS)
    assert [found.seconds, found.probes] == pytest.approx([20, 4])


def test_without_a_budget_every_phase_has_no_limit() -> None:
    for phase in PHASES:
        assert allowance(phase, Amount(), COSTS) == Amount(math.inf, math.inf)


def test_an_amount_covers_another_when_both_seconds_and_probes_do() -> None:
    assert Amount(10, 10).covers(Amount(10, 10))
    assert not Amount(9, 10).covers(Amount(10, 10))
    assert not Amount(10, 9).covers(Amount(10, 10))
    assert Amount(10).covers(Amount(10, 1e9))
    assert Amount(probes=10).covers(Amount(1e9, 10))


def test_a_block_costs_a_launch_and_its_probes() -> None:
    assert COSTS.block(5) == Amount(20.0, 5)


@pytest.mark.parametrize(
    ("left", "blocks"),
    [
        (Amount(100, 1_000), 6),  # 16 s a block
        (Amount(1_000, 10), 3),
        (Amount(96, 18), LEAST_LAUNCHES),
        (Amount(95.9, 18), 5),
        (Amount(96, 17), 5),
        (Amount(probes=7), 2),
        (Amount(33), 2),
        (Amount(-5, 10), 0),
        (Amount(5, 10), 0),
    ],
)
def test_minutes_and_probes_both_limit_the_blocks(left: Amount, blocks: int) -> None:
    assert blocks_in(left, COSTS, 3) == blocks


def test_without_a_limit_there_are_more_blocks_than_anybody_wants() -> None:
    assert blocks_in(Amount(), COSTS, 3) >= 1_000


def test_costs_that_are_not_known_yet_leave_the_probes_as_the_limit() -> None:
    assert blocks_in(Amount(60, 12), Costs(0.0, 0.0), 3) == 4


@given(AMOUNTS, st.integers(1, 20))
@settings(deadline=None)
def test_the_blocks_that_fit_are_covered_and_one_more_is_not(left: Amount, entries: int) -> None:
    blocks = blocks_in(left, COSTS, entries)
    assert (left - COSTS.block(entries) * blocks).covers(Amount(-1e-6, -1e-6))
    assert not (left - COSTS.block(entries) * (blocks + 1)).covers(Amount(1e-6, 1e-6))
