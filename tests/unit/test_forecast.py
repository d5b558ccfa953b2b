"""What a sweep is expected to cost."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.decide.budget import SHARES, Amount, Costs
from autotune.decide.forecast import Range, Readings, forecast
from autotune.outcome import PHASES, Phase

COSTS = Costs(launch_seconds=6.0, probe_seconds=2.0)
NONE = Readings()


def planned(
    setups: int, budget: Amount | None = None, readings: Readings = NONE
) -> Mapping[Phase, Range]:
    return forecast(
        setups,
        COSTS,
        budget or Amount(),
        baseline_every=4,
        probes_per_launch=50,
        readings=readings,
    )


def test_a_search_takes_every_setup_once_and_a_baseline_before_each_four() -> None:
    search = planned(19)["search"]
    assert search.launches == (1, 1)
    assert search.probes == (25, 25)
    assert list(search.minutes) == pytest.approx([0.8 * 56 / 60, 1.3 * 56 / 60])


def test_a_race_takes_three_to_eight_launches_of_at_most_eight_entrants_and_the_baseline() -> None:
    race = planned(8)["race"]
    assert race.launches == (3, 8)
    assert race.probes == (3 * 3, 8 * 9)


def test_more_than_eight_setups_may_take_a_launch_with_a_second_probe_of_sixteen() -> None:
    race = planned(100)["race"]
    assert race.launches == (3, 9)
    assert race.probes == (3 * 3, 8 * 9 + 16 + 5)


def test_one_setup_needs_no_race_and_none_needs_nothing() -> None:
    assert planned(1)["race"].launches == (0, 0)
    assert planned(1)["confirm"].probes == (6 * 3, 30 * 3)
    nothing = planned(0)
    assert all(item.launches == (0, 0) and item.probes == (0, 0) for item in nothing.values())


def test_a_confirmation_takes_six_to_thirty_launches_of_three_to_five_probes() -> None:
    confirm = planned(100)["confirm"]
    assert confirm.launches == (6, 30)
    assert confirm.probes == (18, 150)


@given(
    st.integers(0, 500),
    st.floats(1.0, 1e4) | st.just(math.inf),
    st.integers(1, 2000) | st.just(math.inf),
)
def test_no_phase_is_expected_to_exceed_what_it_may_spend(
    setups: int, seconds: float, probes: float
) -> None:
    found = planned(setups, Amount(seconds, probes))
    assert set(found) == set(PHASES)
    for phase in PHASES:
        item, share = found[phase], SHARES[phase]
        assert item.minutes[0] <= item.minutes[1] <= share * seconds / 60 + 1e-9
        assert item.launches[0] <= item.launches[1]
        assert item.probes[0] <= item.probes[1] <= math.ceil(min(1e9, share * probes))


def test_the_first_start_of_readings_is_one_of_the_searchs() -> None:
    """It finds cold caches, which a sweep without readings would find too."""
    without, read = planned(19), planned(19, readings=Readings(exposures=2, alone=1))
    assert without["search"].launches == (1, 1)
    assert read["search"].launches == (2, 2)
    assert read["search"].probes == without["search"].probes
    assert without["numerics"].launches == (1, 1)
    assert read["numerics"].launches == (2, 2)  # one rank alone, and the gates
