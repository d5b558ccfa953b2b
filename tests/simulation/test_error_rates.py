"""How often the code that decides is wrong, in simulated worlds whose true speeds are known.

Seeded. The bounds are the promises; `benchmarks/error_rates.py` prints the rates themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest

from tests.simulation.run import Rates, Score, mean_known, play, rates
from tests.simulation.world import SCENARIOS

REPEATS = 300
EQUAL, DISTURBED, OF_TWO, OF_EIGHT, OF_TWENTY, NORMAL_3, NORMAL_10 = SCENARIOS
RIVALLED = (OF_TWO, OF_EIGHT, OF_TWENTY, NORMAL_3, NORMAL_10)  # something is truly faster

Scores = Callable[[str], list[Score]]


@pytest.fixture(scope="module")
def scores() -> Scores:
    """Plays a scenario when a test first asks for it."""
    named = {scenario.name: scenario for scenario in SCENARIOS}

    @cache
    def played(name: str) -> list[Score]:
        return [play(named[name], seed) for seed in range(REPEATS)]

    return played


@pytest.fixture(scope="module")
def rate(scores: Scores) -> Callable[[str], Rates]:
    return lambda name: rates(scores(name))


Rate = Callable[[str], Rates]


def test_when_all_setups_are_equal_a_gain_is_hardly_ever_claimed(rate: Rate) -> None:
    assert rate(EQUAL.name).confirmed <= 0.05


def test_the_naive_rule_claims_a_gain_among_equal_setups_most_of_the_time(rate: Rate) -> None:
    found = rate(EQUAL.name)
    assert found.naive_claims > 0.5
    assert found.naive_inflation > 1.0


def test_spikes_and_drift_do_not_make_false_claims(rate: Rate) -> None:
    assert rate(DISTURBED.name).confirmed <= 0.05


@pytest.mark.parametrize("name", [OF_TWO.name, OF_EIGHT.name])
def test_a_gain_of_3_percent_is_confirmed_nine_times_in_ten(rate: Rate, name: str) -> None:
    assert rate(name).confirmed_right >= 0.9


@pytest.mark.parametrize("name", [scenario.name for scenario in RIVALLED])
def test_claimed_gains_are_hardly_inflated(rate: Rate, name: str) -> None:
    assert abs(rate(name).inflation) <= 0.3


def test_the_winner_among_150_setups_is_near_the_best(rate: Rate) -> None:
    assert rate(NORMAL_10.name).regret <= 0.5


@pytest.mark.parametrize("name", [scenario.name for scenario in RIVALLED])
def test_the_naive_rule_claims_more_than_is_true_and_loses_more(rate: Rate, name: str) -> None:
    found = rate(name)
    assert found.naive_inflation > found.inflation
    assert found.naive_regret > found.regret


@pytest.mark.timeout(300)
def test_the_claimed_intervals_hold_the_true_gain(scores: Scores) -> None:
    everything = [item.covered for scenario in SCENARIOS for item in scores(scenario.name)]
    assert mean_known(everything) >= 0.93


@pytest.mark.parametrize("name", [scenario.name for scenario in SCENARIOS])
def test_no_scenario_hides_behind_the_others(rate: Rate, name: str) -> None:
    """Nominal .95; four standard errors below it at these repeats."""
    assert rate(name).coverage >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / REPEATS)
