"""When a probe is stopped early: made-up reports on real Optuna studies."""

from __future__ import annotations

import math

import optuna
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from optuna.trial import TrialState

from autotune.search.pruner import ClearlyBehind, leader

ratios = st.floats(0.05, 20.0)
floors = st.floats(0.0, 0.5)
reports = st.lists(ratios, min_size=1, max_size=6)


def stops(
    finished: list[float], reported: list[float], noise_floor: float | None, **attributes: bool
) -> bool:
    """Whether a trial with these reports is stopped in a study with these finished ratios."""
    pruner = ClearlyBehind()
    pruner.noise_floor = noise_floor
    study = optuna.create_study(direction="maximize", pruner=pruner)
    for ratio in finished:
        trial = study.ask()
        for name, value in attributes.items():
            trial.set_user_attr(name, value)
        study.tell(trial, ratio)
    trial = study.ask()
    for step, ratio in enumerate(reported):
        trial.report(ratio, step)
    return trial.should_prune()


@given(st.lists(ratios, max_size=3), reports, floors, st.floats(-1.0, 1.0))
def test_a_difference_inside_the_noise_floor_never_stops_a_probe(
    finished: list[float], reported: list[float], noise_floor: float, share: float
) -> None:
    best = max([1.0, *finished])
    near = best * math.exp(-share * noise_floor)
    assert not stops(finished, [*reported, near], noise_floor)


@given(st.lists(ratios, max_size=3), reports)
def test_an_unknown_noise_floor_never_stops_a_probe(
    finished: list[float], reported: list[float]
) -> None:
    assert not stops(finished, reported, None)


@given(st.lists(ratios, max_size=3), reports, floors)
def test_exactly_what_screening_would_drop_is_stopped(
    finished: list[float], reported: list[float], noise_floor: float
) -> None:
    behind = math.log(max([1.0, *finished]) / max(reported))
    limit = max(0.08, 4 * noise_floor)
    assume(abs(behind - limit) > 1e-9)
    assert stops(finished, reported, noise_floor) == (len(reported) >= 2 and behind > limit)


def test_the_warm_up_alone_never_stops_a_probe() -> None:
    assert not stops([2.0], [0.1], 0.01)
    assert stops([2.0], [0.1, 0.1], 0.01)


def test_the_best_report_counts_and_not_the_last() -> None:
    assert not stops([], [0.1, 1.0, 0.1], 0.01)


@pytest.mark.parametrize(("noise_floor", "stopped"), [(0.01, True), (0.03, False)])
def test_a_noisy_machine_needs_a_larger_difference(noise_floor: float, stopped: bool) -> None:
    assert stops([], [0.9, 0.9], noise_floor) == stopped


def test_the_baseline_leads_until_a_setup_beats_it() -> None:
    study = optuna.create_study(direction="maximize")
    assert leader(study) == 1.0
    for ratio in (0.7, 1.3, 1.1):
        study.tell(study.ask(), ratio)
    study.tell(study.ask(), state=TrialState.FAIL)
    assert leader(study) == 1.3


@pytest.mark.parametrize("attributes", [{"may_lead": False}, {"duplicate": True}])
def test_who_cannot_win_does_not_lead(attributes: dict[str, bool]) -> None:
    assert not stops([5.0], [1.0, 1.0], 0.01, **attributes)
