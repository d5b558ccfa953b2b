import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.decide import (
    Entry,
    Observation,
    Rules,
    State,
    Verdict,
    absorb,
    candidates,
    next_block,
    start_confirmation,
    start_race,
    verdict,
)
from autotune.decide.confirm import preference
from autotune.decide.race import LEAST_LAUNCHES, spread_of
from autotune.decide.stats import POWER, power
from autotune.setup import Setup
from tests.build import make_setup

BASELINE = make_setup()
A, B, C = (make_setup(bucket_bytes=size) for size in (1_000, 2_000, 3_000))
GB = 10**9
# Mean 0 over six, and small.
WOBBLE = (0.001, -0.002, 0.0015, -0.0005, 0.001, -0.001)
LABELS = (0.0005, -0.0005, 0.0005, -0.0005, 0.0005, -0.0005)

Shifts = Mapping[Setup, float]


def begin(*setups: Setup, distance: float = 0.02, most: int = 30) -> State:
    return start_confirmation(Rules(), BASELINE, setups, distance=distance, most=most)


def row(
    state: State,
    launch: int,
    backward: Mapping[Setup, float],
    end_to_end: Shifts,
    label: float,
    memory: Mapping[Setup, int],
) -> State:
    """One launch: log speeds of the setups, and the difference of the baseline's labels."""
    for entry in state.entries:
        second = label if entry.control else 0.0
        speed = second if entry.setup == BASELINE else backward[entry.setup]
        whole = second if entry.setup == BASELINE else end_to_end.get(entry.setup, speed)
        state = absorb(
            state,
            Observation(
                launch=launch,
                entry=entry,
                kind="ok",
                backward=speed,
                end_to_end=whole,
                peak_memory_bytes=memory.get(entry.setup, GB),
            ),
        )
    return state


def judged(
    means: Shifts,
    *,
    noise: float = 1.0,
    launches: int = 6,
    end_to_end: Shifts | None = None,
    labels: Sequence[float] = LABELS,
    memory: Mapping[Setup, int] | None = None,
) -> Verdict:
    """The verdict when each setup has this mean log gain and `WOBBLE` times ``noise`` around it."""
    state = begin(*means)
    for launch in range(launches):
        noises = {s: noise * WOBBLE[(launch + 2 * i) % 6] for i, s in enumerate(means)}
        backward = {setup: mean + noises[setup] for setup, mean in means.items()}
        whole = {setup: mean + noises[setup] for setup, mean in (end_to_end or {}).items()}
        state = row(state, launch, backward, whole, labels[launch % 6], memory or {})
    return verdict(state)


def lost(state: State, setup: Setup, launch: int) -> State:
    return absorb(
        state, Observation(launch=launch, entry=Entry(setup), kind="oom", reason="too big")
    )


def test_an_interval_above_the_margin_confirms() -> None:
    found = judged({A: 0.05})
    assert (found.name, found.winner, found.launches) == ("confirmed", A, 6)
    assert found.claim is not None
    assert found.claim.setup == A
    assert found.claim.backward.mean == pytest.approx(0.05)
    assert found.claim.backward.low > math.log(1.01)


def test_the_claim_is_the_t_interval_of_the_six_launches() -> None:
    """t(.975, 5) = 2.571 in the tables."""
    found = judged({A: 0.05})
    gains = [0.05 + noise - label / 2 for noise, label in zip(WOBBLE, LABELS, strict=True)]
    assert found.claim is not None
    half = found.claim.backward.high - found.claim.backward.mean
    assert half == pytest.approx(2.571 * stdev(gains) / math.sqrt(6), rel=1e-3)
    assert found.claim.backward.confidence == pytest.approx(0.95)


def test_the_claims_of_three_candidates_hold_together() -> None:
    found = judged({A: 0.05, B: 0.02, C: 0.03})
    assert len(found.claims) == 3
    for claim in found.claims:
        assert claim.backward.confidence == pytest.approx(1 - 0.05 / 3)
        assert claim.end_to_end.confidence == claim.backward.confidence


def test_a_gain_below_the_margin_keeps_the_baseline_however_sure_it_is() -> None:
    found = judged({A: 0.005})
    assert (found.name, found.winner) == ("keep-baseline", BASELINE)
    assert found.claim is not None
    assert found.claim.setup == A
    assert found.claim.backward.low > 0


def test_a_slower_candidate_keeps_the_baseline() -> None:
    found = judged({A: -0.05, B: -0.1})
    assert (found.name, found.winner) == ("keep-baseline", BASELINE)


def test_an_interval_that_contains_the_margin_decides_nothing() -> None:
    found = judged({A: 0.012}, noise=10)
    assert (found.name, found.winner) == ("inconclusive", A)
    assert found.why == "the interval contains 1 + margin (1.01)"


def test_an_undecided_verdict_on_a_slower_mean_names_the_baseline() -> None:
    found = judged({A: -0.001}, noise=20)
    assert (found.name, found.winner) == ("inconclusive", BASELINE)


def test_one_candidate_that_may_gain_is_enough_to_leave_it_open() -> None:
    found = judged({A: -0.05, B: 0.012}, noise=5)
    assert found.name == "inconclusive"


def test_an_open_verdict_is_about_a_candidate_whose_interval_leaves_it_open() -> None:
    """The rule would prefer the safe one, which no paired test tells from the noisy one."""
    safe = make_setup(precision="bf16")
    narrow = make_setup(precision="bf16", grad_comm_dtype="bf16")
    state = begin(narrow, safe)
    for launch, wobble in enumerate(WOBBLE):
        speeds = {safe: -0.3 + wobble, narrow: 0.02 + 300 * wobble}
        state = row(state, launch, speeds, {safe: wobble}, LABELS[launch], {})
    found = verdict(state)
    assert found.name == "inconclusive"
    assert set(found.equivalent) == {safe, narrow}
    assert found.claim is not None
    assert (found.winner, found.claim.setup) == (narrow, narrow)
    low, high = found.claim.backward.interval
    assert low < 1.01 < high


@pytest.mark.parametrize("launches", [0, 1])
def test_without_two_launches_the_baseline_is_kept_for_now_and_nothing_claimed(
    launches: int,
) -> None:
    found = judged({A: 0.05, B: 0.1}, launches=launches)
    assert (found.name, found.winner, found.claim) == ("inconclusive", BASELINE, None)
    assert found.why == f"{launches} launches are too few, a verdict takes 6"


def test_without_a_launch_no_candidate_is_named_that_was_seen_to_be_slower() -> None:
    """The search lets setups enter that are up to 8 % behind the baseline."""
    race = start_race(Rules(), BASELINE, (A,))
    found = candidates(race, {A: -0.05}, 0.01)
    state = start_confirmation(
        Rules(), BASELINE, found.setups, distance=found.distance, most=found.launches
    )
    assert verdict(state).winner == BASELINE


@pytest.mark.parametrize("launches", [2, 5])
def test_fewer_than_six_launches_give_a_number_and_no_verdict(launches: int) -> None:
    found = judged({A: 0.05}, launches=launches)
    assert (found.name, found.launches) == ("inconclusive", launches)
    assert found.claim is not None
    assert found.why == f"{launches} launches are too few, a verdict takes 6"


@pytest.mark.parametrize("gain", [0.05, -0.05])
def test_a_baseline_that_differs_from_itself_forbids_every_verdict(gain: float) -> None:
    found = judged({A: gain}, labels=[0.02 + value for value in LABELS])
    assert found.name == "inconclusive"
    assert found.why.startswith("the baseline differs from itself (1.01")
    assert found.control is not None
    assert found.control.mean == pytest.approx(0.02)
    assert found.control.confidence == 0.99


def test_the_control_is_the_second_label_over_the_first() -> None:
    found = judged({A: 0.05}, labels=[0.1] * 6)
    assert found.control is not None
    assert found.control.ratio == pytest.approx(math.exp(0.1))


def test_without_a_candidate_the_baseline_is_kept() -> None:
    found = verdict(begin())
    assert (found.name, found.winner) == ("keep-baseline", BASELINE)
    assert found.why == "nothing came close enough to it"


def test_when_every_candidate_failed_nothing_is_decided() -> None:
    state = lost(lost(begin(A, B), A, 0), B, 0)
    found = verdict(state)
    assert (found.name, found.why, found.winner) == (
        "inconclusive",
        "every candidate failed",
        BASELINE,
    )
    assert [(out.setup, out.reason) for out in found.out] == [
        (A, "oom: too big"),
        (B, "oom: too big"),
    ]


def test_a_candidate_that_failed_has_no_claim_and_still_counts_in_the_correction() -> None:
    state = begin(A, B)
    for launch in range(6):
        if launch == 2:
            state = lost(state, B, launch)
        speeds = {A: 0.05 + WOBBLE[launch], B: 0.2}
        state = row(state, launch, speeds, {}, LABELS[launch], {})
    found = verdict(state)
    assert (found.name, found.winner, found.launches) == ("confirmed", A, 6)
    assert [claim.setup for claim in found.claims] == [A]
    assert found.claims[0].backward.confidence == pytest.approx(0.975)
    assert [(out.setup, out.blocks) for out in found.out] == [(B, 2)]


def test_what_is_slower_end_to_end_cannot_win() -> None:
    found = judged({A: 0.1}, end_to_end={A: -0.05})
    assert (found.name, found.winner) == ("keep-baseline", BASELINE)
    assert found.why.endswith("every candidate is slower end-to-end")
    assert found.equivalent == ()
    assert not found.claims[0].may_win


def test_the_next_best_wins_when_the_fastest_is_slower_end_to_end() -> None:
    found = judged({A: 0.1, B: 0.05}, end_to_end={A: -0.05})
    assert (found.name, found.winner, found.equivalent) == ("confirmed", B, (B,))


def test_end_to_end_counts_as_slower_only_when_that_is_shown() -> None:
    found = judged({A: 0.1}, end_to_end={A: -0.0001})
    assert (found.name, found.winner) == ("confirmed", A)


def test_who_cannot_be_told_from_the_fastest_is_equivalent() -> None:
    found = judged({A: 0.05, B: 0.0502, C: 0.03})
    assert set(found.equivalent) == {A, B}


def test_among_equivalent_setups_the_rule_chooses_and_not_the_mean() -> None:
    safe = make_setup(precision="bf16")
    narrow = make_setup(precision="bf16", grad_comm_dtype="bf16")
    found = judged({narrow: 0.0502, safe: 0.05})
    assert set(found.equivalent) == {safe, narrow}
    assert (found.winner, found.name) == (safe, "confirmed")
    assert found.claim is not None
    assert found.claim.setup == safe


def test_a_safer_setup_that_is_shown_to_be_slower_than_the_fastest_does_not_win() -> None:
    narrow = make_setup(precision="bf16", grad_comm_dtype="bf16")
    found = judged({narrow: 0.1, A: 0.05})
    assert (found.name, found.winner, found.equivalent) == ("confirmed", narrow, (narrow,))


def test_a_slower_setup_whose_gain_was_shown_wins_over_a_faster_one_whose_gain_was_not() -> None:
    state = begin(A, B)
    for launch, noise in enumerate((0.04, -0.04, 0.03, -0.03, 0.02, -0.02)):
        speeds = {A: 0.05 + noise, B: 0.02 + WOBBLE[launch]}
        state = row(state, launch, speeds, {}, LABELS[launch], {})
    found = verdict(state)
    assert found.claims[0].backward.low < math.log(1.01) < found.claims[1].backward.low
    assert found.equivalent == (A,)
    assert (found.name, found.winner) == ("confirmed", B)


def test_what_was_shown_is_preferred_to_an_equivalent_that_was_not() -> None:
    """B is told from A by nothing, but only A's interval lies above the margin."""
    state = begin(B, A)
    noisy = (0.08, -0.07, 0.06, -0.06, 0.07, -0.08)
    for launch in range(6):
        speeds = {A: 0.05 + WOBBLE[launch], B: 0.04 + noisy[launch]}
        state = row(state, launch, speeds, {}, LABELS[launch], {B: GB // 2})
    found = verdict(state)
    assert set(found.equivalent) == {A, B}
    assert (found.name, found.winner) == ("confirmed", A)


def test_the_tie_rule_prefers_wire_then_precision_then_memory_then_fewer_changes() -> None:
    wire = make_setup(precision="bf16", grad_comm_dtype="fp32", zero_stage=3)
    precise = make_setup(precision="fp32", grad_comm_dtype="bf16", zero_stage=3)
    small = make_setup(precision="bf16", grad_comm_dtype="bf16", zero_stage=3, bucket_bytes=1)
    near = make_setup(precision="bf16", grad_comm_dtype="bf16")
    far = make_setup(precision="bf16", grad_comm_dtype="bf16", zero_stage=3)
    memory = {wire: 90, precise: 80, small: 10, near: 40, far: 40}
    keys = [preference(setup, BASELINE, memory[setup]) for setup in memory]
    assert keys == sorted(keys)
    assert len(set(keys)) == 5


def test_safer_dtypes_come_first() -> None:
    wires = [make_setup(grad_comm_dtype=name) for name in ("fp32", "bf16", "fp16")]
    names = ("fp32", "tf32", "bf16", "fp16")
    precisions = [make_setup(precision=name, loss_scale=None) for name in names]
    for setups in (wires, precisions):
        assert all(
            preference(safer, BASELINE, 1) < preference(other, BASELINE, 1)
            for safer, other in pairwise(setups)
        )


def test_memory_in_the_same_step_of_5_percent_counts_as_equal() -> None:
    step = 1.05**400  # the middle of a step
    near, far = A, make_setup(bucket_bytes=1, zero_stage=2)
    assert preference(near, BASELINE, step * 1.02) < preference(far, BASELINE, step * 0.98)
    assert preference(near, BASELINE, step * 1.05) > preference(far, BASELINE, step)


def test_the_key_settles_what_the_rule_leaves_open() -> None:
    assert preference(A, BASELINE, GB) != preference(B, BASELINE, GB)
    assert preference(A, BASELINE, GB)[:-1] == preference(B, BASELINE, GB)[:-1]


# The blinded extension.

SPREADS = st.lists(st.floats(-0.05, 0.05), min_size=6, max_size=6)


def extended(noises: Sequence[float], mean: float, distance: float, most: int = 30) -> State:
    state = begin(A, distance=distance, most=most)
    for launch, noise in enumerate(noises):
        state = row(state, launch, {A: mean + noise}, {}, 0.0, {})
    return state


@given(SPREADS, st.floats(-0.2, 0.2), st.floats(0.005, 0.1))
@settings(deadline=None)
def test_the_extension_depends_on_the_spread_and_not_on_the_mean(
    noises: list[float], mean: float, distance: float
) -> None:
    centre = fmean(noises)
    here = extended([noise - centre for noise in noises], 0.0, distance)
    there = extended([noise - centre for noise in noises], mean, distance)
    spread = spread_of(here)
    edge = any(
        abs(power(distance, spread, launches, 0.95) - POWER) < 1e-9 for launches in range(6, 30)
    )
    assert there.wanted == here.wanted or edge


@given(SPREADS, st.floats(0.005, 0.1), st.integers(6, 40))
@settings(deadline=None)
def test_the_extension_takes_the_launches_that_resolve_the_distance(
    noises: list[float], distance: float, most: int
) -> None:
    state = extended(noises, 0.05, distance, most)
    assert 6 <= state.wanted <= most
    if 6 < state.wanted < most:
        assert power(distance, spread_of(state), state.wanted, 0.95) >= POWER
        assert power(distance, spread_of(state), state.wanted - 1, 0.95) < POWER


def test_a_clear_case_ends_after_six_launches_and_a_noisy_one_goes_on() -> None:
    assert next_block(extended(WOBBLE, 0.05, 0.04)) is None
    noisy = extended([30 * value for value in WOBBLE], 0.05, 0.04)
    assert next_block(noisy) is not None
    assert noisy.wanted > LEAST_LAUNCHES


def test_nothing_is_planned_anew_after_the_sixth_launch() -> None:
    state = extended([10 * value for value in WOBBLE], 0.05, 0.015)
    wanted = state.wanted
    assert wanted > 8
    for launch in (6, 7):
        state = row(state, launch, {A: 3.0 * launch}, {}, 0.0, {})
    assert state.wanted == wanted


def test_a_confirmation_takes_no_more_launches_than_it_may() -> None:
    state = extended([30 * value for value in WOBBLE], 0.05, 0.001, most=6)
    assert next_block(state) is None
    assert begin(A, most=4).wanted == 4
