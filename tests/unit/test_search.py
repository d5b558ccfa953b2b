"""The real Optuna storage in a file, with outcomes made up."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.trial import FrozenTrial, TrialState

from autotune.backends import RESTRICTIONS
from autotune.errors import UsageError
from autotune.outcome import Probe
from autotune.search import Search, Store
from autotune.setup import Setup
from autotune.space import Space, make_baseline, make_space
from tests.build import make_context, make_probe

AXES = {
    "precision": ("fp32", "bf16"),
    "grad_comm_dtype": ("fp32", "bf16"),
    "zero_stage": (1, 2, 3),
    "bucket_bytes": (25_000_000,),
}


@pytest.fixture
def space() -> Space:
    return make_space(AXES, make_context(), RESTRICTIONS)


def make_search(store: Store, space: Space, *, exhaustive: bool = True) -> Search:
    baseline = make_baseline({}, space)
    return Search(store, space, space.valid(), baseline, exhaustive=exhaustive)


def measure(search: Search, count: int, first: int = 0) -> list[Setup]:
    """Probes ``count`` proposals; fewer when the search ends."""
    taken = []
    for number in range(first, first + count):
        proposal = search.propose()
        if proposal is None:
            break
        search.tell(proposal, make_probe(number, proposal.setup), 1.0 + number / 100)
        taken.append(proposal.setup)
    return taken


def reopen(store: Store) -> Store:
    return Store(store.folder, create=False)


@pytest.mark.parametrize("exhaustive", [True, False])
def test_every_valid_setup_but_the_baseline_is_proposed_exactly_once(
    tmp_path: Path, space: Space, exhaustive: bool
) -> None:
    search = make_search(Store(tmp_path, create=True), space, exhaustive=exhaustive)
    taken = measure(search, 1000)
    assert len(taken) == len(set(taken))
    assert {*taken, make_baseline({}, space)} == set(space.valid())
    assert search.propose() is None


def test_the_order_is_random_and_not_that_of_the_enumeration(tmp_path: Path, space: Space) -> None:
    taken = measure(make_search(Store(tmp_path, create=True), space), 1000)
    assert taken != [setup for setup in space.valid() if setup in taken]


def test_sampling_starts_with_bf16_on_either_wire(tmp_path: Path, space: Space) -> None:
    search = make_search(Store(tmp_path, create=True), space, exhaustive=False)
    first = measure(search, 2)
    assert {(item.precision, item.grad_comm_dtype) for item in first} == {
        ("bf16", "fp32"),
        ("bf16", "bf16"),
    }
    assert {(item.backend, item.zero_stage) for item in first} == {("deepspeed", 1)}


@pytest.mark.parametrize("exhaustive", [True, False])
def test_a_killed_controller_loses_and_repeats_nothing(
    tmp_path: Path, space: Space, exhaustive: bool
) -> None:
    store = Store(tmp_path, create=True)
    search = make_search(store, space, exhaustive=exhaustive)
    before = measure(search, 7)
    left = search.propose()  # the controller dies while this one runs
    assert left is not None
    resumed = make_search(reopen(store), space, exhaustive=exhaustive)
    again = resumed.propose()
    assert again is not None
    assert again.setup == left.setup
    resumed.tell(again, make_probe(7, again.setup), 1.0)
    after = measure(resumed, 1000, first=8)
    assert {*before, left.setup, *after, make_baseline({}, space)} == set(space.valid())
    assert not {*before, left.setup} & set(after)


def test_a_controller_killed_between_two_suggestions_can_be_resumed(
    tmp_path: Path, space: Space
) -> None:
    store = Store(tmp_path, create=True)
    search = make_search(store, space)
    measure(search, 3)
    half = search._study.ask()
    half.suggest_categorical("backend", space.axes["backend"])
    resumed = make_search(reopen(store), space)
    assert len(measure(resumed, 1000, first=3)) == len(space.valid()) - 1 - 3


def test_a_probe_recorded_before_the_kill_but_not_told_is_kept(
    tmp_path: Path, space: Space
) -> None:
    store = Store(tmp_path, create=True)
    search = make_search(store, space)
    proposal = search.propose()
    assert proposal is not None
    search._close = lambda trial, setup: None  # type: ignore[method-assign]
    search.tell(proposal, make_probe(0, proposal.setup), 1.5)
    resumed = make_search(reopen(store), space)
    assert proposal.setup not in measure(resumed, 1000, first=1)
    assert len([p for p in store.probes() if p.setup == proposal.setup]) == 1


def test_failed_setups_are_not_proposed_again(tmp_path: Path, space: Space) -> None:
    store = Store(tmp_path, create=True)
    search = make_search(store, space, exhaustive=False)
    proposal = search.propose()
    assert proposal is not None
    search.tell(proposal, make_probe(0, proposal.setup, kind="oom"), None)
    taken = measure(make_search(reopen(store), space, exhaustive=False), 1000, first=1)
    assert proposal.setup not in taken


def stop_early(search: Search, number: int = 0) -> Setup:
    """Takes a proposal that is far behind and is stopped for it."""
    search.noise_floor = 0.01
    proposal = search.propose()
    assert proposal is not None
    assert search.reason_to_stop(proposal, 0, 0.5) is None
    assert search.reason_to_stop(proposal, 1, 0.4) is not None
    search.tell(proposal, make_probe(number, proposal.setup, kind="pruned"), None)
    return proposal.setup


def trials(search: Search) -> list[FrozenTrial]:
    return search._study.get_trials()


def test_a_probe_far_behind_the_leader_is_stopped_with_the_numbers(
    tmp_path: Path, space: Space
) -> None:
    search = make_search(Store(tmp_path, create=True), space)
    first, second = search.propose(), search.propose()
    assert first is not None
    assert second is not None
    search.tell(first, make_probe(0, first.setup), 1.5)
    search.noise_floor = 0.05
    assert search.reason_to_stop(second, 0, 0.5) is None
    assert search.reason_to_stop(second, 1, 0.75) == (
        "2.00x slower than the leader after burst 1 of timed steps (0.75x the baseline against "
        "1.50x; the limit is 1.22x); stopped early."
    )


def test_nothing_is_stopped_before_the_noise_floor_is_known(tmp_path: Path, space: Space) -> None:
    search = make_search(Store(tmp_path, create=True), space)
    proposal = search.propose()
    assert proposal is not None
    assert search.noise_floor is None
    assert [search.reason_to_stop(proposal, index, 0.1) for index in range(3)] == [None] * 3
    assert trials(search)[0].intermediate_values == {0: 0.1, 1: 0.1, 2: 0.1}


def test_a_setup_that_cannot_win_stops_nobody(tmp_path: Path, space: Space) -> None:
    search = make_search(Store(tmp_path, create=True), space)
    search.noise_floor = 0.01
    fast, other = search.propose(), search.propose()
    assert fast is not None
    assert other is not None
    search.tell(fast, make_probe(0, fast.setup), 9.0, may_lead=False)
    assert search.reason_to_stop(other, 0, 1.0) is None
    assert search.reason_to_stop(other, 1, 1.0) is None


@pytest.mark.parametrize("exhaustive", [True, False])
def test_a_pruned_setup_counts_as_measured_valid_and_is_never_proposed_again(
    tmp_path: Path, space: Space, exhaustive: bool
) -> None:
    store = Store(tmp_path, create=True)
    search = make_search(store, space, exhaustive=exhaustive)
    unmeasured = search.unmeasured
    setup = stop_early(search)
    assert search.unmeasured == unmeasured - 1
    (told,) = (trial for trial in trials(search) if "probe" in trial.user_attrs)
    assert told.state == TrialState.PRUNED
    assert told.intermediate_values == {0: 0.5, 1: 0.4}
    assert max(told.constraints.values()) <= 0
    resumed = make_search(reopen(store), space, exhaustive=exhaustive)
    assert setup not in measure(resumed, 1000, first=1)
    assert resumed.propose() is None


def test_the_sampler_hears_the_same_of_a_pruned_setup_that_it_proposes_again(
    tmp_path: Path, space: Space
) -> None:
    store = Store(tmp_path, create=True)
    setup = stop_early(make_search(store, space))
    search = make_search(reopen(store), space)
    search._study.enqueue_trial(dict(space.valid()[setup]))
    search.propose()
    repeated = trials(search)[1]
    assert repeated.user_attrs["duplicate"]
    assert (repeated.state, repeated.value) == (TrialState.PRUNED, 0.4)
    assert max(repeated.constraints.values()) <= 0


def test_a_pruned_probe_recorded_before_the_kill_but_not_told_is_closed_as_pruned(
    tmp_path: Path, space: Space
) -> None:
    store = Store(tmp_path, create=True)
    search = make_search(store, space)
    search._close = lambda trial, setup: None  # type: ignore[method-assign]
    setup = stop_early(search)
    assert trials(search)[0].state == TrialState.RUNNING
    resumed = make_search(reopen(store), space)
    closed = trials(resumed)[0]
    assert closed.state == TrialState.PRUNED
    assert max(closed.constraints.values()) <= 0
    assert setup not in measure(resumed, 1000, first=1)


@pytest.mark.parametrize("exhaustive", [True, False])
def test_a_probe_killed_after_its_first_reports_is_taken_anew_and_judged_by_its_own(
    tmp_path: Path, space: Space, exhaustive: bool
) -> None:
    store = Store(tmp_path, create=True)
    search = make_search(store, space, exhaustive=exhaustive)
    left = search.propose()
    assert left is not None
    for index in range(2):
        search.reason_to_stop(left, index, 1.0)
    for _ in range(2):  # the second controller dies at once
        resumed = make_search(reopen(store), space, exhaustive=exhaustive)
    resumed.noise_floor = 0.01
    again = resumed.propose()
    while again is not None and again.setup != left.setup:
        resumed.tell(again, make_probe(0, again.setup), 1.0)
        again = resumed.propose()
    assert again is not None
    assert resumed.reason_to_stop(again, 0, 0.5) is None
    assert resumed.reason_to_stop(again, 1, 0.5) is not None
    resumed.tell(again, make_probe(1, again.setup, kind="pruned"), None)
    assert left.setup not in measure(resumed, 1000, first=2)
    assert not [trial for trial in trials(resumed) if not trial.state.is_finished()]


def test_records_come_back_equal_and_in_order(tmp_path: Path, space: Space) -> None:
    store = Store(tmp_path, create=True)
    search = make_search(store, space)
    kept: list[Probe] = [make_probe(0, make_baseline({}, space), baseline=True)]
    store.add(kept[0])
    for number in (1, 2, 3):
        proposal = search.propose()
        assert proposal is not None
        kept.append(make_probe(number, proposal.setup, kind="ok" if number < 3 else "crash"))
        search.tell(proposal, kept[-1], 1.0 if number < 3 else None)
    assert reopen(store).probes() == kept


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    Store(tmp_path, create=True)
    with pytest.raises(UsageError, match=r"already holds a run.*--resume"):
        Store(tmp_path, create=True)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        Store(tmp_path / "missing", create=False)
    assert not (tmp_path / "missing").exists()
