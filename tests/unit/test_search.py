"""The real Optuna storage in a file, with outcomes made up."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    search._close = lambda trial, ratio: None  # type: ignore[method-assign]
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


def test_records_come_back_equal_and_in_order(tmp_path: Path, space: Space) -> None:
    store = Store(tmp_path, create=True)
    search = make_search(store, space)
    kept: list[Probe] = [make_probe(0, make_baseline({}, space), baseline=True)]
    store.add_baseline(kept[0])
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
