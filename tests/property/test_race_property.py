from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.decide import (
    Entry,
    Observation,
    Rules,
    State,
    absorb,
    candidates,
    next_block,
    start_confirmation,
    start_race,
    verdict,
)
from autotune.decide.race import LOSES_LAUNCH, SPOILED_IN_A_ROW, TOLERATED, Stage
from autotune.outcome import OutcomeKind
from autotune.setup import Setup
from tests.build import make_setup

BASELINE = make_setup()
SETUPS = tuple(make_setup(bucket_bytes=size) for size in range(1_000, 1_005))
KINDS: tuple[OutcomeKind, ...] = ("oom", "invalid", "inert", "unsafe", "crash", "hang")
FAILURES = st.sampled_from(KINDS)
# Logs of throughputs: e ** 100 tokens a second is beyond any machine.
VALUES = st.floats(-100, 100)
STAGES: tuple[Stage, ...] = ("race", "confirm")
MOST = 8


@dataclass(frozen=True, slots=True)
class Reply:
    """What one probe finds."""

    kind: OutcomeKind
    value: float = 0.0

    @property
    def loses_launch(self) -> bool:
        return self.kind in (*LOSES_LAUNCH, "oom")


LOST_LAUNCH = None  # the workers are gone before they answer
REPLIES = st.one_of(st.builds(Reply, st.just("ok"), VALUES), st.builds(Reply, FAILURES))
Answer = Callable[[int, Entry], Reply | None]  # of the block's number and the entry


def begin(stage: Stage, entrants: Sequence[Setup], seed: int = 0) -> State:
    rules = Rules(seed=seed)
    if stage == "race":
        return start_race(rules, BASELINE, tuple(entrants))
    return start_confirmation(rules, BASELINE, tuple(entrants), distance=0.02, most=MOST)


def observed(launch: int, entry: Entry, reply: Reply) -> Observation:
    if reply.kind != "ok":
        return Observation(launch=launch, entry=entry, kind=reply.kind, reason="because")
    return Observation(
        launch=launch,
        entry=entry,
        kind="ok",
        backward=reply.value,
        end_to_end=reply.value,
        peak_memory_bytes=1,
    )


def serve(state: State, launch: int, answer: Answer) -> Iterator[tuple[Observation, State]]:
    """One block in one launch, as the sweep serves it; every observation with the state after."""
    block = next_block(state)
    assert block is not None
    for entry in block.entries:
        if entry not in state.entries:
            continue
        reply = answer(block.number, entry)
        if reply is None:
            return
        observation = observed(launch, entry, reply)
        state = absorb(state, observation)
        yield observation, state
        if reply.loses_launch or (entry.setup == BASELINE and reply.kind != "ok"):
            return


def finish(
    state: State, launches: Iterator[int], answer: Answer
) -> tuple[State, list[Observation]]:
    """Goes on until the stage is decided; the end and what was observed."""
    seen = []
    while next_block(state) is not None:
        for observation, after in serve(state, next(launches), answer):
            seen.append(observation)
            state = after
    return state, seen


def replies_in_order(replies: Sequence[Reply | None]) -> Answer:
    """Each reply once, then the same good one for ever."""
    left = iter(replies)
    return lambda number, entry: next(left, Reply("ok"))


def most_launches(state: State) -> int:
    """Complete blocks, each after one spoiled one; a last row of spoiled ones; lost launches."""
    lost = len(state.entrants) * (TOLERATED + 2)  # the last one leaves by an oom
    return 2 * state.most + SPOILED_IN_A_ROW + lost


@given(
    st.sampled_from(STAGES),
    st.integers(0, 5),
    st.lists(REPLIES | st.just(LOST_LAUNCH), max_size=150),
    st.integers(0, 9),
)
@settings(deadline=None)
def test_every_run_ends_and_each_block_holds_the_baseline(
    stage: Stage, entrants: int, replies: list[Reply | None], seed: int
) -> None:
    state = begin(stage, SETUPS[:entrants], seed)
    bound = most_launches(state) + replies.count(LOST_LAUNCH)
    answer = replies_in_order(replies)
    launches = 0
    while (block := next_block(state)) is not None:
        assert Entry(BASELINE) in block.entries
        assert (Entry(BASELINE, control=True) in block.entries) is (stage == "confirm")
        for _, after in serve(state, launches, answer):
            assert Entry(BASELINE) in after.entries
            state = after
        launches += 1
        assert launches <= bound
    assert all(Entry(BASELINE) in row for row in state.rows)
    if stage == "confirm":
        assert verdict(state).winner in (BASELINE, *state.setups)


@given(st.sampled_from(STAGES), st.integers(1, 5), st.lists(REPLIES, max_size=100))
@settings(deadline=None)
def test_every_entrant_is_either_still_in_or_left_once(
    stage: Stage, entrants: int, replies: list[Reply | None]
) -> None:
    end, _ = finish(begin(stage, SETUPS[:entrants]), count(), replies_in_order(replies))
    both = [*end.setups, *(out.setup for out in end.out)]
    assert sorted(setup.key for setup in both) == [setup.key for setup in SETUPS[:entrants]]
    assert all(out.blocks <= len(end.rows) for out in end.out)


@given(st.sampled_from(STAGES), st.lists(REPLIES, max_size=60))
@settings(deadline=None)
def test_every_complete_block_was_served_by_one_launch(
    stage: Stage, replies: list[Reply | None]
) -> None:
    end, _ = finish(begin(stage, SETUPS[:3]), count(), replies_in_order(replies))
    served = [{item.launch for item in row.values()} for row in end.rows]
    assert all(len(launches) == 1 for launches in served)
    assert len(set.union(set(), *served)) == len(end.rows)


@given(st.sampled_from(STAGES), st.lists(REPLIES, max_size=40))
@settings(deadline=None)
def test_absorbing_changes_nothing_that_was_there(
    stage: Stage, replies: list[Reply | None]
) -> None:
    state = begin(stage, SETUPS[:3])
    _, seen = finish(state, count(), replies_in_order(replies))
    for observation in seen:
        before = repr(state), repr(observation)
        after = absorb(state, observation)
        assert (repr(state), repr(observation)) == before
        state = after


# Resuming.


@dataclass(frozen=True, slots=True)
class Truth:
    """Replies by block and entry alone, so that a resumed run meets the same ones."""

    values: Sequence[float]
    failures: Sequence[tuple[int, int, bool, OutcomeKind]]  # block, place in everyone, label, kind

    def __call__(self, number: int, entry: Entry) -> Reply:
        everyone = (*SETUPS, BASELINE)
        place = everyone.index(entry.setup)
        for block, failing, control, kind in self.failures:
            if (block, failing, control) == (number, place, entry.control):
                return Reply(kind)
        name = f"{number} {place} {entry.control}".encode()
        return Reply("ok", self.values[zlib.crc32(name) % len(self.values)])


FAILING = st.tuples(
    st.integers(0, 8), st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5]), st.booleans(), FAILURES
)
TRUTHS = st.builds(
    Truth,
    st.lists(VALUES | st.floats(-0.02, 0.02), min_size=1, max_size=30),
    st.lists(FAILING, max_size=4),
)


def without_launches(state: State) -> State:
    """The state, as if one launch had served all."""
    rows = tuple(
        {entry: replace(item, launch=0) for entry, item in row.items()} for row in state.rows
    )
    return replace(state, rows=rows, open=(), spoiled=0)


@given(st.sampled_from(STAGES), st.integers(1, 5), TRUTHS, st.integers(0, 9), st.booleans())
@settings(deadline=None, max_examples=15)
def test_a_run_resumed_after_any_probe_ends_as_the_uninterrupted_one(
    stage: Stage, entrants: int, truth: Truth, seed: int, forgives: bool
) -> None:
    """``forgives``: the sweep forgets spoiled blocks when it resumes."""
    start = begin(stage, SETUPS[:entrants], seed)
    end, seen = finish(start, count(), truth)
    for prefix in range(len(seen) + 1):
        state = start
        for observation in seen[:prefix]:
            state = absorb(state, observation)
        state = replace(state, spoiled=0) if forgives else state
        resumed, _ = finish(state, count(1_000), truth)
        assert without_launches(resumed) == without_launches(end)
        if stage == "confirm":
            assert verdict(resumed) == verdict(end)
        else:
            screened = dict.fromkeys(SETUPS, 0.0)
            assert candidates(resumed, screened, 0.01) == candidates(end, screened, 0.01)
