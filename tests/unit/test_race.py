import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from autotune.decide import (
    Block,
    Entry,
    Observation,
    Rules,
    State,
    absorb,
    next_block,
    observe,
    start_confirmation,
    start_race,
)
from autotune.decide.race import against_baseline, behind, leader_of
from autotune.outcome import OutcomeKind
from autotune.setup import Setup
from tests.build import make_probe, make_setup

BASELINE = make_setup()
A, B, C = (make_setup(bucket_bytes=size) for size in (1_000, 2_000, 3_000))
BASE, CONTROL = Entry(BASELINE), Entry(BASELINE, control=True)
# Small and different in every block, so that a t statistic exists.
WOBBLE = (0.001, -0.002, 0.0015, -0.0005, 0.002, -0.001, 0.0005, -0.0015)
AT_ONCE: tuple[OutcomeKind, ...] = ("oom", "invalid", "inert", "unsafe")
LAUNCH_LOST: tuple[OutcomeKind, ...] = ("crash", "hang")

Gains = Mapping[Setup, float]


def ok(entry: Entry, value: float, launch: int) -> Observation:
    return Observation(
        launch=launch, entry=entry, kind="ok", backward=value, end_to_end=value, peak_memory_bytes=1
    )


def failed(entry: Entry, kind: OutcomeKind, launch: int) -> Observation:
    return Observation(launch=launch, entry=entry, kind=kind, reason="because")


def asked(state: State) -> Block:
    block = next_block(state)
    assert block is not None
    return block


def serve(state: State, gains: Gains, *, launch: int | None = None) -> State:
    """One block; each setup's wobble is its own, and the whole launch has a level."""
    block = asked(state)
    number = block.number if launch is None else launch
    for position, entry in enumerate(sorted(block.entries, key=lambda item: item.setup.key)):
        wobble = WOBBLE[(block.number + 3 * position) % len(WOBBLE)]
        state = absorb(state, ok(entry, number + gains.get(entry.setup, 0.0) + wobble, number))
    return state


def race_of(*setups: Setup, rules: Rules | None = None) -> State:
    return start_race(rules or Rules(), BASELINE, setups)


def after_blocks(state: State, count: int, gains: Gains) -> State:
    for _ in range(count):
        state = serve(state, gains)
    return state


def entries_of(count: int, seed: int = 0) -> list[tuple[Entry, ...]]:
    state = race_of(A, B, C, rules=Rules(seed=seed))
    blocks = []
    for _ in range(count):
        blocks.append(asked(state).entries)
        state = replace(serve(state, {}), closed=False)
    return blocks


def test_a_block_holds_every_setup_and_the_baseline_once() -> None:
    assert set(asked(race_of(A, B)).entries) == {BASE, Entry(A), Entry(B)}


def test_a_confirmation_holds_the_baseline_under_a_second_label_as_well() -> None:
    state = start_confirmation(Rules(), BASELINE, (A,), distance=0.02, most=30)
    assert sorted(asked(state).entries, key=str) == sorted([BASE, CONTROL, Entry(A)], key=str)


def test_the_baseline_needs_no_place_among_the_entrants() -> None:
    state = start_race(Rules(), BASELINE, (A, BASELINE, B))
    assert state.setups == (A, B)
    assert asked(state).entries.count(BASE) == 1


def test_every_second_block_reverses_the_one_before() -> None:
    first, second, third, fourth = entries_of(4)
    assert second == first[::-1]
    assert fourth == third[::-1]


def test_the_orders_are_random() -> None:
    orders = {entries_of(1, seed)[0] for seed in range(200)}
    assert len(orders) == math.factorial(4)


def test_the_next_pair_of_blocks_has_an_order_of_its_own() -> None:
    pairs = [entries_of(3, seed) for seed in range(10)]
    assert sum(blocks[2] != blocks[0] for blocks in pairs) >= 7


def test_the_same_seed_gives_the_same_orders() -> None:
    assert entries_of(6, seed=3) == entries_of(6, seed=3)
    assert entries_of(6, seed=3) != entries_of(6, seed=4)


def test_the_order_does_not_depend_on_how_the_entrants_were_listed() -> None:
    assert asked(race_of(A, B, C)).entries == asked(race_of(C, A, B)).entries


def test_who_stays_keeps_the_order_when_others_leave() -> None:
    state = race_of(A, B, C)
    before = asked(state).entries
    state = absorb(state, failed(Entry(B), "oom", 0))
    assert asked(state).entries == tuple(entry for entry in before if entry.setup != B)


def test_a_block_counts_when_one_launch_served_all_of_it() -> None:
    state = serve(race_of(A, B), {})
    assert len(state.rows) == 1
    assert set(state.rows[0]) == {BASE, Entry(A), Entry(B)}
    assert state.open == ()


def test_a_block_begun_in_one_launch_and_ended_in_another_does_not_count() -> None:
    state = race_of(A, B)
    state = absorb(state, ok(BASE, 0.0, 0))
    state = absorb(state, ok(Entry(A), 0.0, 0))
    state = absorb(state, ok(Entry(B), 0.0, 1))
    assert state.rows == ()
    assert [item.launch for item in state.open] == [1]
    state = absorb(absorb(state, ok(BASE, 0.0, 1)), ok(Entry(A), 0.0, 1))
    assert len(state.rows) == 1
    assert {item.launch for item in state.rows[0].values()} == {1}


@pytest.mark.parametrize("kind", AT_ONCE)
def test_a_setup_that_fails_is_out_at_once_and_the_block_goes_on(kind: OutcomeKind) -> None:
    state = absorb(race_of(A, B, C), ok(BASE, 0.0, 0))
    state = absorb(state, failed(Entry(A), kind, 0))
    assert state.setups == (B, C)
    assert [(out.setup, out.blocks, out.reason) for out in state.out] == [
        (A, 0, f"{kind}: because")
    ]
    state = absorb(absorb(state, ok(Entry(B), 0.0, 0)), ok(Entry(C), 0.0, 0))
    assert len(state.rows) == 1


@pytest.mark.parametrize("kind", AT_ONCE)
def test_a_failure_in_the_last_probe_completes_the_block_of_the_others(kind: OutcomeKind) -> None:
    state = race_of(A, B, C)
    for entry in (BASE, Entry(A), Entry(B)):
        state = absorb(state, ok(entry, 0.0, 0))
    state = absorb(state, failed(Entry(C), kind, 0))
    assert len(state.rows) == 1
    assert set(state.rows[0]) == {BASE, Entry(A), Entry(B)}


@pytest.mark.parametrize("kind", LAUNCH_LOST)
def test_a_setup_that_loses_its_launch_tries_once_more_and_is_out_the_second_time(
    kind: OutcomeKind,
) -> None:
    state = absorb(race_of(A, B, C), ok(BASE, 0.0, 0))
    state = absorb(state, failed(Entry(A), kind, 0))
    assert state.setups == (A, B, C)
    assert state.open == ()
    state = absorb(state, failed(Entry(A), kind, 1))
    assert state.setups == (B, C)
    assert state.out[0].reason == f"{kind}: because"


def test_one_setup_s_lost_launch_is_not_charged_to_another() -> None:
    state = absorb(race_of(A, B, C), failed(Entry(A), "crash", 0))
    state = absorb(state, failed(Entry(B), "hang", 1))
    assert state.setups == (A, B, C)


def test_a_crash_and_a_hang_count_together() -> None:
    state = absorb(race_of(A, B, C), failed(Entry(A), "crash", 0))
    assert absorb(state, failed(Entry(A), "hang", 1)).setups == (B, C)


def test_a_setup_may_lose_a_launch_in_each_stage() -> None:
    state = absorb(race_of(A, B), failed(Entry(A), "crash", 0))
    assert state.lost == (A,)
    assert start_confirmation(Rules(), BASELINE, (A,), distance=0.0, most=9).lost == ()


@pytest.mark.parametrize("kind", [*AT_ONCE, *LAUNCH_LOST])
@pytest.mark.parametrize("entry", [BASE, CONTROL])
def test_a_block_whose_baseline_failed_is_spoiled_and_two_in_a_row_end_the_stage(
    kind: OutcomeKind, entry: Entry
) -> None:
    state = start_confirmation(Rules(), BASELINE, (A, B), distance=0.02, most=30)
    state = absorb(state, ok(Entry(A), 0.0, 0))
    state = absorb(state, failed(entry, kind, 0))
    assert (state.spoiled, state.open, state.setups) == (1, (), (A, B))
    assert next_block(state) is not None
    assert next_block(absorb(state, failed(entry, kind, 1))) is None


def test_a_complete_block_between_two_spoiled_ones_lets_the_race_go_on() -> None:
    state = absorb(race_of(A, B), failed(BASE, "crash", 7))
    state = serve(state, {A: 0.5}, launch=8)
    assert next_block(absorb(state, failed(BASE, "crash", 9))) is not None


def test_losers_leave_at_the_looks_alone() -> None:
    """Three far apart, so that each look would remove what is behind, if it looked."""
    gains = {A: 0.3, B: 0.2, C: 0.1}
    state = after_blocks(race_of(A, B, C), 2, gains)
    assert state.setups == (A, B, C)
    assert serve(state, gains).setups == (A,)


@pytest.mark.parametrize("blocks", range(2, 9))
def test_looks_are_after_blocks_3_5_and_8_alone(blocks: int) -> None:
    """The blocks before are put in place without their looks; B is always far behind."""
    row = {entry: ok(entry, value, 0) for entry, value in ((BASE, 0.0), (Entry(A), 0.9))}
    before = tuple({**row, Entry(B): ok(Entry(B), 0.1 + w, 0)} for w in WOBBLE[: blocks - 1])
    state = serve(replace(race_of(A, B), rows=before), {A: 0.9, B: 0.1})
    assert len(state.rows) == blocks
    assert (B not in state.setups) is (blocks in (3, 5, 8))


def test_the_leader_is_never_removed_and_may_be_the_baseline() -> None:
    state = after_blocks(race_of(A, B), 3, {A: -0.2, B: -0.3})
    assert leader_of(state) == BASELINE
    assert state.setups == ()
    assert next_block(state) is None


def test_the_baseline_stays_in_every_block_however_slow_it_is() -> None:
    rules = Rules(level=1e-3)  # so that B stays, which is but a little behind
    state = after_blocks(race_of(A, B, C, rules=rules), 3, {A: 1.0, B: 0.98, C: 0.2})
    assert state.setups == (A, B)
    assert set(asked(state).entries) == {BASE, Entry(A), Entry(B)}


def test_one_setup_left_ends_the_race() -> None:
    state = race_of(A, B)
    assert next_block(state) is not None
    assert next_block(absorb(state, failed(Entry(A), "oom", 0))) is None
    assert next_block(race_of(A)) is None
    assert next_block(race_of()) is None


def test_one_setup_left_does_not_end_a_confirmation() -> None:
    state = start_confirmation(Rules(), BASELINE, (A, B), distance=0.02, most=30)
    state = absorb(state, failed(Entry(A), "oom", 0))
    assert next_block(state) is not None
    assert next_block(absorb(state, failed(Entry(B), "oom", 0))) is None


def test_all_within_the_margin_of_the_leader_ends_the_race_at_a_look() -> None:
    gains = {A: 0.104, B: 0.1}
    state = after_blocks(race_of(A, B), 2, gains)
    assert next_block(state) is not None
    state = serve(state, gains)
    assert state.setups == (A, B)
    assert next_block(state) is None


def test_a_setup_beyond_the_margin_that_is_not_shown_to_be_slower_keeps_the_race_going() -> None:
    state = race_of(A, B)
    for number, gap in enumerate((0.01, -0.3, 0.245)):  # 1.5 % in the mean
        state = absorb(state, ok(BASE, -0.5, number))
        state = absorb(state, ok(Entry(A), 0.0, number))
        state = absorb(state, ok(Entry(B), gap, number))
    assert state.setups == (A, B)
    assert next_block(state) is not None


@pytest.mark.parametrize(("level", "stays"), [(0.05, True), (0.15, False)])
def test_the_looks_share_the_level(level: float, stays: bool) -> None:
    """t = 4 with 2 degrees of freedom: p is .0286, over .05 / 3 and under .05."""
    state = race_of(A, B, rules=Rules(level=level))
    deviation = 0.02 * math.sqrt(3) / 4
    for number, noise in enumerate((-deviation, 0.0, deviation)):
        state = absorb(state, ok(BASE, -0.5, number))
        state = absorb(state, ok(Entry(A), 0.0, number))
        state = absorb(state, ok(Entry(B), -0.02 + noise, number))
    assert (B in state.setups) is stays


def test_the_last_look_ends_the_race() -> None:
    rules = Rules(margin=1e-6)
    state = race_of(A, B, rules=rules)
    for number in range(8):
        assert next_block(state) is not None
        state = absorb(state, ok(BASE, -0.5, number))
        state = absorb(state, ok(Entry(A), 0.0, number))
        state = absorb(state, ok(Entry(B), 0.1 * (-1) ** number, number))
    assert state.setups == (A, B)
    assert next_block(state) is None


def test_the_reason_says_by_how_much_and_behind_whom() -> None:
    state = after_blocks(race_of(A, B), 3, {A: 0.5, B: 0.5 + math.log(0.8)})
    assert [out.setup for out in state.out] == [B]
    assert state.out[0].blocks == 3
    assert state.out[0].reason.startswith(f"behind {A.key} by 20.")
    assert "(p = " in state.out[0].reason


def test_the_level_of_a_launch_cancels_in_the_paired_ratios() -> None:
    state = after_blocks(race_of(A, B), 2, {A: 0.2, B: 0.1})
    moved = race_of(A, B)
    for shift, row in zip((5.0, -3.0), state.rows, strict=True):
        for item in row.values():
            moved = absorb(moved, replace(item, backward=item.backward + shift))
    assert behind(moved, B, A) == pytest.approx(behind(state, B, A))
    assert against_baseline(moved, A) == pytest.approx(against_baseline(state, A))


def test_a_confirmation_refers_to_the_mean_of_both_labels() -> None:
    state = start_confirmation(Rules(), BASELINE, (A,), distance=0.02, most=30)
    for entry, value in ((BASE, 1.0), (CONTROL, 3.0), (Entry(A), 2.5)):
        state = absorb(state, ok(entry, value, 0))
    assert against_baseline(state, A) == [0.5]


def test_an_observation_is_the_log_of_the_probe_s_throughput() -> None:
    probe = make_probe(4, A, backward=0.1, end_to_end=0.5, launch=7)
    seen = observe(probe)
    assert seen.launch == 7
    assert seen.entry == Entry(A)
    assert seen.backward == pytest.approx(math.log(1000 / 0.1))
    assert seen.end_to_end == pytest.approx(math.log(4 * 1000 / 0.5))
    assert seen.peak_memory_bytes == 10**9


def test_an_observation_reads_the_median_step_so_that_one_stall_moves_it_little() -> None:
    probe = make_probe(0, A, backward=0.1)
    measured = probe.outcome.measurement
    assert measured is not None
    stalled = replace(measured, backward_seconds=(0.1, 0.1, 0.1, 9.0))
    outcome = replace(probe.outcome, measurement=stalled)
    assert observe(replace(probe, outcome=outcome)).backward == observe(probe).backward


def test_an_observation_of_a_failure_keeps_the_reason() -> None:
    seen = observe(make_probe(0, A, kind="oom"))
    assert (seen.kind, seen.reason, seen.backward) == ("oom", "because", 0.0)


def test_the_second_label_of_the_baseline_is_an_entry_of_its_own() -> None:
    assert observe(replace(make_probe(0, BASELINE), control=True)).entry == CONTROL
