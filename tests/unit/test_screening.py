"""Who goes from the search into the race, and from the race into the confirmation."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.decide import (
    Observation,
    Rules,
    Standing,
    State,
    absorb,
    candidates,
    noise_floor,
    qualifiers,
    screen,
    start_race,
)
from autotune.decide.confirm import MOST_LAUNCHES
from autotune.decide.race import LEAST_LAUNCHES, claim_confidence
from autotune.decide.screening import MOST_ENTRANTS, baseline_log_ratios
from autotune.decide.stats import POWER, power
from autotune.outcome import Probe
from autotune.setup import Setup
from tests.build import make_probe, make_setup

BASELINE = make_setup()
SETUPS = [make_setup(bucket_bytes=size) for size in range(1_000, 1_012)]
A, B, C, D = SETUPS[:4]
# Mean 0 over six, and small.
WOBBLE = (0.001, -0.002, 0.0015, -0.0005, 0.001, -0.001)


def standing(setup_index: int, log_ratio: float, end_to_end: float | None = None) -> Standing:
    whole = log_ratio if end_to_end is None else end_to_end
    return Standing(SETUPS[setup_index], math.exp(log_ratio), math.exp(whole))


def with_baseline(*found: Standing) -> list[Standing]:
    ranked = [*found, Standing(BASELINE, 1.0, 1.0)]
    return sorted(ranked, key=lambda item: item.ratio, reverse=True)


def baseline(number: int, log_speed: float, launch: int = 0) -> Probe:
    seconds = 0.1 * math.exp(-log_speed)
    return make_probe(number, BASELINE, backward=seconds, launch=launch, baseline=True)


def test_the_best_come_first_and_the_baseline_takes_no_place() -> None:
    found = screen(with_baseline(standing(1, 0.05), standing(0, 0.02)), BASELINE, 0.01)
    assert found.entrants == (B, A)
    assert found.log_ratios == {B: pytest.approx(0.05), A: pytest.approx(0.02)}
    assert found.dropped == ()


@pytest.mark.parametrize(
    ("floor", "limit"), [(0.0, 0.08), (0.02, 0.08), (0.021, 0.084), (0.05, 0.2)]
)
def test_the_limit_is_8_percent_or_four_noise_floors(floor: float, limit: float) -> None:
    ranked = with_baseline(
        standing(0, 0.5), standing(1, 0.5 - limit + 1e-6), standing(2, 0.5 - limit - 1e-6)
    )
    found = screen(ranked, BASELINE, floor)
    assert found.limit == pytest.approx(limit)
    assert found.entrants == (A, B)
    assert [out.setup for out in found.dropped] == [C]
    assert "behind the leader of the search" in found.dropped[0].reason


def test_nothing_is_dropped_by_distance_while_the_noise_floor_is_unknown() -> None:
    far = with_baseline(standing(0, 0.5), standing(1, -0.5), standing(2, 0.1, -0.5))
    found = screen(far, BASELINE, None)
    assert found.limit == math.inf
    assert found.entrants == (A, C, B)


def test_the_distance_is_to_the_baseline_when_that_leads() -> None:
    found = screen(with_baseline(standing(0, -0.07), standing(1, -0.09)), BASELINE, 0.01)
    assert found.entrants == (A,)


def test_the_reason_names_the_distance_and_the_limit() -> None:
    behind = standing(1, math.log(0.75), end_to_end=0.0)
    found = screen(with_baseline(standing(0, 0.0), behind), BASELINE, 0.01)
    assert found.dropped[0].reason == "25% behind the leader of the search, over 8%"


def test_at_most_eight_enter_and_the_baseline_is_not_counted() -> None:
    ranked = with_baseline(*(standing(index, -0.001 * (index + 1)) for index in range(10)))
    found = screen(ranked, BASELINE, 0.01)
    assert ranked[0].setup == BASELINE
    assert found.entrants == tuple(SETUPS[:8])
    assert [out.reason for out in found.dropped] == ["not among the best 8 of the search"] * 2


def test_what_is_clearly_slower_end_to_end_neither_enters_nor_leads() -> None:
    slow = standing(0, 0.5, math.log(0.9))
    found = screen(with_baseline(slow, standing(1, 0.02)), BASELINE, 0.01)
    assert found.entrants == (B,)
    assert found.dropped[0].reason == "slower end-to-end than the baseline (0.90x)"


def test_what_is_slower_end_to_end_by_noise_may_enter() -> None:
    found = screen(with_baseline(standing(0, 0.5, -0.07)), BASELINE, 0.01)
    assert found.entrants == (A,)


def test_more_than_eight_near_the_leader_are_probed_again_and_at_most_sixteen() -> None:
    eight = with_baseline(*(standing(index, 0.001 * index) for index in range(8)))
    assert qualifiers(eight, BASELINE, 0.01) == ()
    far = with_baseline(*(standing(index, 0.001 * index) for index in range(8)), standing(8, -0.2))
    assert qualifiers(far, BASELINE, 0.01) == ()
    nine = with_baseline(*(standing(index, 0.001 * index) for index in range(9)))
    assert qualifiers(nine, BASELINE, 0.01) == tuple(SETUPS[index] for index in range(8, -1, -1))
    many = [
        Standing(make_setup(bucket_bytes=size), 1 + size / 1e6, 1.0) for size in range(30, 0, -1)
    ]
    found = qualifiers([*many, Standing(BASELINE, 1.0, 1.0)], BASELINE, 0.01)
    assert found == tuple(item.setup for item in many[:16])


def test_no_standing_no_entrant() -> None:
    found = screen([], BASELINE, 0.01)
    assert (found.entrants, found.dropped) == ((), ())


@given(
    st.lists(st.floats(-0.5, 0.5), max_size=12),
    st.none() | st.floats(0, 0.1),
)
@settings(deadline=None)
def test_every_setup_enters_or_is_dropped_with_a_reason(
    ratios: list[float], floor: float | None
) -> None:
    ranked = with_baseline(*(standing(index, value) for index, value in enumerate(ratios)))
    found = screen(ranked, BASELINE, floor)
    both = [*found.entrants, *(out.setup for out in found.dropped)]
    assert sorted(setup.key for setup in both) == sorted(s.key for s in SETUPS[: len(ratios)])
    assert len(found.entrants) <= MOST_ENTRANTS
    assert all(out.reason for out in found.dropped)
    worst = min((found.log_ratios[setup] for setup in found.entrants), default=math.inf)
    assert all(item.ratio <= math.exp(worst) for item in ranked if item.setup in both[8:])


def test_the_noise_floor_is_the_spread_of_neighbouring_baselines() -> None:
    probes = [baseline(0, 0.0), make_probe(1, A), baseline(2, 0.03), baseline(3, -0.01)]
    assert baseline_log_ratios(probes) == pytest.approx([0.03, -0.04])
    assert noise_floor(probes) == pytest.approx(math.sqrt((0.03**2 + 0.04**2) / 2))


def test_only_baselines_of_one_launch_are_paired() -> None:
    probes = [
        baseline(0, 0.0, launch=0),
        baseline(1, 0.01, launch=0),
        baseline(2, 5.0, launch=1),
        baseline(3, 5.03, launch=1),
    ]
    assert baseline_log_ratios(probes) == pytest.approx([0.01, 0.03])


def test_baselines_of_two_launches_that_alternate_are_paired_within_each() -> None:
    probes = [baseline(n, (n % 2) + 0.01 * n, launch=n % 2) for n in range(4)]
    assert baseline_log_ratios(probes) == pytest.approx([0.02, 0.02])


def test_both_labels_of_a_confirmation_count() -> None:
    control = replace(baseline(1, 0.02), baseline=False, control=True)
    assert noise_floor([baseline(0, 0.0), control]) == pytest.approx(0.02)


def test_failed_baselines_do_not_count_even_with_a_measurement() -> None:
    probe = baseline(1, 5.0)
    lost = replace(probe, outcome=replace(probe.outcome, kind="unsafe"))
    assert baseline_log_ratios([baseline(0, 0.0), lost, baseline(2, 0.05)]) == [pytest.approx(0.05)]


@pytest.mark.parametrize(
    "probes",
    [
        [],
        [baseline(0, 0.0)],
        [baseline(0, 0.0, launch=0), baseline(1, 0.0, launch=1)],
        [make_probe(0, A), make_probe(1, A)],
    ],
    ids=["none", "one", "two launches", "no baseline"],
)
def test_without_a_pair_the_floor_is_unknown(probes: list[Probe]) -> None:
    assert noise_floor(probes) is None


# Who is confirmed.


def raced(gains: Mapping[Setup, float], blocks: int = 3, noise: float = 1.0) -> State:
    """A race whose setups are all still in, since its only look is far away."""
    state = start_race(Rules(looks=(99,)), BASELINE, tuple(gains))
    for launch in range(blocks):
        for place, entry in enumerate(state.entries):
            wobble = noise * WOBBLE[(launch + 2 * place) % 6] if entry.setup in gains else 0.0
            speed = gains.get(entry.setup, 0.0) + wobble
            seen = Observation(
                launch=launch, entry=entry, kind="ok", backward=speed, peak_memory_bytes=10**9
            )
            state = absorb(state, seen)
    assert len(state.rows) == blocks
    return state


def test_the_leader_the_rule_s_favourite_and_the_next_best_are_confirmed() -> None:
    narrow = [make_setup(grad_comm_dtype="bf16", bucket_bytes=size) for size in (1, 2, 3)]
    gains = {narrow[2]: 0.07, narrow[0]: 0.1, A: 0.05, narrow[1]: 0.08}
    assert candidates(raced(gains), {}, 0.01).setups == (narrow[0], A, narrow[1])


def test_the_two_best_are_enough_when_the_leader_s_first_rival_is_the_favourite() -> None:
    narrow = make_setup(grad_comm_dtype="bf16")
    gains = {narrow: 0.02, B: 0.05, A: 0.1}
    assert candidates(raced(gains), {}, 0.01).setups == (A, B, narrow)


def test_a_favourite_that_leads_leaves_the_place_to_the_next_in_the_rule() -> None:
    fp16 = make_setup(grad_comm_dtype="fp16")
    bf16 = [make_setup(grad_comm_dtype="bf16", bucket_bytes=size) for size in (1, 2)]
    gains = {A: 0.1, fp16: 0.09, bf16[0]: 0.05, bf16[1]: 0.06}
    assert candidates(raced(gains), {}, 0.01).setups == (A, bf16[0], fp16)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_entrants_are_all_confirmed(count: int) -> None:
    gains = dict(zip((A, B, C)[:count], (0.1, 0.05, 0.02), strict=False))
    assert candidates(raced(gains), {}, 0.01).setups == (A, B, C)[:count]


def test_nobody_is_confirmed_when_nobody_is_left() -> None:
    found = candidates(start_race(Rules(), BASELINE, ()), {}, 0.01)
    assert (found.setups, found.launches) == ((), 0)


def test_without_a_race_the_search_ranks() -> None:
    state = start_race(Rules(), BASELINE, (A, B, C, D))
    screened = {A: 0.01, B: 0.05, C: 0.03, D: 0.04}
    assert candidates(state, screened, 0.01).setups == (B, A, D)


def test_with_a_race_the_search_is_forgotten() -> None:
    state = raced({A: 0.1, B: 0.05})
    assert candidates(state, {A: -1.0, B: 1.0}, 0.5) == candidates(state, {}, 0.01)


def test_the_distance_is_the_cautious_end_of_the_gain_over_the_margin() -> None:
    """From the search alone: one probe, so its error is the noise floor itself."""
    state = start_race(Rules(), BASELINE, (A,))
    found = candidates(state, {A: 0.1}, 0.02)
    assert found.distance == pytest.approx(0.1 - math.log(1.01) - 2 * 0.02)


def test_more_blocks_make_the_expected_gain_surer() -> None:
    few, many = raced({A: 0.1}, 2, noise=8), raced({A: 0.1}, 6, noise=8)
    assert candidates(many, {}, 0.01).distance > candidates(few, {}, 0.01).distance


@pytest.mark.parametrize("gain", [0.0, 0.01, 0.02])
def test_the_distance_is_never_below_the_margin(gain: float) -> None:
    state = start_race(Rules(), BASELINE, (A,))
    found = candidates(state, {A: gain}, 0.02)
    assert found.distance == pytest.approx(math.log(1.01))


def test_the_launches_resolve_the_distance_at_the_confidence_of_all_claims() -> None:
    state = start_race(Rules(), BASELINE, (A, B, C))
    found = candidates(state, {A: 0.075, B: 0.0, C: 0.0}, 0.02)
    confidence = claim_confidence(Rules(), 3)
    assert LEAST_LAUNCHES < found.launches < MOST_LAUNCHES
    assert power(found.distance, 0.02, found.launches, confidence) >= POWER
    assert power(found.distance, 0.02, found.launches - 1, confidence) < POWER
