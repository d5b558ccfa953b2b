import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.decide.exposure import (
    LEAST_PAIRS,
    Exposed,
    closes,
    exposed_communication,
    justification,
)
from autotune.readings import Exposure

MARGIN = 0.01


def reading(synced: Sequence[float], unsynced: Sequence[float]) -> Exposure:
    return Exposure(synced_seconds=tuple(synced), unsynced_seconds=tuple(unsynced))


def measured(synced: Sequence[float], unsynced: Sequence[float]) -> Exposed:
    found = exposed_communication(reading(synced, unsynced))
    assert found is not None
    return found


def noisy(exposed: float, *, pairs: int = 10, noise: float = 0.0001, seed: int = 3) -> Exposure:
    """A backward of 10 ms without communication."""
    chance = random.Random(seed)
    unsynced = [chance.gauss(0.010, noise) for _ in range(pairs)]
    return reading([chance.gauss(0.010 + exposed, noise) for _ in range(pairs)], unsynced)


def made(share: float, half_width: float, backward: float = 0.0123) -> Exposed:
    low, high = (share - half_width) * backward, (share + half_width) * backward
    return Exposed(backward, share * backward, (low, high))


def test_the_exposed_time_is_the_mean_difference_with_its_t_interval() -> None:
    """Differences 2, 3, 4 ms: mean 3, t(.975, 2) = 4.303, standard error 1 / sqrt 3."""
    found = measured([0.012, 0.012, 0.012], [0.010, 0.009, 0.008])
    half = 4.303e-3 / math.sqrt(3)
    assert found.backward_seconds == 0.012
    assert found.exposed_seconds == pytest.approx(0.003)
    assert found.interval == pytest.approx((0.003 - half, 0.003 + half), rel=1e-3)
    assert found.share == pytest.approx(0.25)
    assert found.share_interval == pytest.approx(
        (0.25 - half / 0.012, 0.25 + half / 0.012), rel=1e-3
    )


def test_pairs_share_what_slows_both_down() -> None:
    """A drift far above the exposed time cancels in each pair."""
    drift = [0.010, 0.020, 0.030, 0.040, 0.050]
    found = measured([value + 0.001 for value in drift], drift)
    assert found.exposed_seconds == pytest.approx(0.001)
    assert found.interval == pytest.approx((0.001, 0.001))


@pytest.mark.parametrize("stall", [0.05, 1.0, 60.0])
@pytest.mark.parametrize("stalled", ["synced", "unsynced"])
def test_one_stalled_pair_does_not_decide(stalled: str, stall: float) -> None:
    calm = noisy(0.004)
    synced, unsynced = list(calm.synced_seconds), list(calm.unsynced_seconds)
    (synced if stalled == "synced" else unsynced)[4] += stall
    found = measured(synced, unsynced)
    before = measured(calm.synced_seconds, calm.unsynced_seconds)
    assert found.exposed_seconds == pytest.approx(before.exposed_seconds, rel=0.05)
    assert found.gain_bound == pytest.approx(before.gain_bound, rel=0.05)
    assert closes(found, MARGIN) is closes(before, MARGIN) is None


def test_a_stall_among_the_fewest_pairs_widens_the_interval_instead() -> None:
    found = measured([0.014, 0.0141, 1.0], [0.010, 0.010, 0.010])
    assert found.interval[0] < 0 < found.interval[1]
    reason = closes(found, MARGIN)
    assert reason is not None
    assert "noise" in reason


def test_stalls_left_out_the_interval_still_covers_the_truth() -> None:
    chance = random.Random(11)
    repeats, covered = 400, 0
    for _ in range(repeats):
        unsynced = [chance.gauss(1.0, 0.01) for _ in range(10)]
        synced = [
            chance.gauss(1.1, 0.01) + (chance.random() < 0.1) * chance.expovariate(1.0)
            for _ in range(10)
        ]
        low, high = measured(synced, unsynced).interval
        covered += low <= 0.1 <= high
    assert covered / repeats == pytest.approx(0.95, abs=0.035)


@pytest.mark.parametrize("pairs", range(LEAST_PAIRS))
def test_too_few_pairs_say_nothing(pairs: int) -> None:
    assert exposed_communication(reading([0.012] * pairs, [0.010] * pairs)) is None


def test_a_library_that_always_reduces_says_nothing() -> None:
    assert exposed_communication(reading([0.012] * 10, [])) is None


def test_equal_values_are_certain() -> None:
    found = measured([0.012] * 5, [0.009] * 5)
    assert found.interval == pytest.approx((0.003, 0.003))
    assert closes(found, MARGIN) is None


def test_equal_times_with_and_without_communication_close_the_axis() -> None:
    found = measured([0.012] * 5, [0.012] * 5)
    assert found.exposed_seconds == 0.0
    assert found.gain_bound == 0.0
    assert closes(found, MARGIN) is not None
    assert closes(found, 0.0) is not None


def test_half_the_bytes_save_half_of_the_upper_end_of_the_exposed_time() -> None:
    """Half of .4 is .2: a backward of .8 runs 1.25x as fast."""
    assert made(0.3, 0.1).gain_bound == pytest.approx(0.25)


@pytest.mark.parametrize(("share", "bound"), [(-0.5, 0.0), (0.0, 0.0), (1.0, 1.0), (3.0, 1.0)])
def test_the_bound_is_no_loss_and_no_more_than_a_doubling(share: float, bound: float) -> None:
    assert made(share, 0.0).gain_bound == pytest.approx(bound)


def test_a_backward_that_was_faster_with_communication_closes_the_axis() -> None:
    found = measured([0.010, 0.0101, 0.0099, 0.010], [0.012, 0.0122, 0.0121, 0.012])
    assert found.exposed_seconds < 0
    assert found.gain_bound == 0.0
    assert closes(found, 0.0) is not None
    assert closes(found, MARGIN) is not None


def test_an_exposed_time_whose_interval_holds_zero_is_noise() -> None:
    assert closes(made(0.04, 0.05), MARGIN) == (
        "gradient communication is exposed for 0.49 ms of a 12.3 ms backward (4.0 %, 95 %"
        " interval -1.0 % to 9.0 %): no more than noise"
    )


def test_an_exposed_time_under_twice_its_noise_closes_the_axis() -> None:
    assert closes(made(0.19, 0.1), MARGIN) == (
        "gradient communication is exposed for 2.3 ms of a 12.3 ms backward (19 %, 95 % interval"
        " 9.0 % to 29 %): less than twice its noise of 1.2 ms"
    )
    assert closes(made(0.21, 0.1), MARGIN) is None


def test_a_bound_below_the_margin_closes_the_axis() -> None:
    assert closes(made(0.01, 0.002), MARGIN) == (
        "gradient communication is exposed for 0.12 ms of a 12.3 ms backward (1.0 %, 95 %"
        " interval 0.8 % to 1.2 %): half the bytes can gain at most 0.6 %, below the margin of 1 %"
    )
    assert closes(made(0.01, 0.002), 0.005) is None


def test_what_is_exposed_beyond_doubt_is_justified_in_one_sentence() -> None:
    found = made(1 / 3, 0.04)
    assert closes(found, MARGIN) is None
    assert justification(found) == (
        "Gradient communication is exposed for 4.1 ms of a 12.3 ms backward (33 %, 95 % interval"
        " 29 % to 37 %): a wire dtype of half the bytes can gain at most 1.23x."
    )


def test_a_bound_near_one_shows_a_third_decimal() -> None:
    assert justification(made(0.03, 0.001)).endswith("at most 1.016x.")


def test_no_number_is_a_negative_zero() -> None:
    reason = closes(made(-0.0001, 0.0002), MARGIN)
    assert reason is not None
    assert "(0.0 %, 95 % interval 0.0 % to 0.0 %)" in reason
    assert "-0.0" not in reason


def test_exposed_time_is_found_in_noise_and_none_is_not() -> None:
    exposed, hidden = (exposed_communication(noisy(seconds)) for seconds in (0.004, 0.0))
    assert exposed is not None
    assert hidden is not None
    assert closes(exposed, MARGIN) is None
    assert closes(hidden, MARGIN) is not None


TIMES = st.floats(1e-4, 10.0)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=LEAST_PAIRS, max_size=20))
@settings(deadline=None)
def test_any_pairs_give_an_interval_around_the_exposed_time_and_a_sane_bound(
    pairs: list[tuple[float, float]],
) -> None:
    found = measured(*zip(*pairs, strict=True))
    low, high = found.interval
    assert low <= found.exposed_seconds <= high
    assert 0 <= found.gain_bound <= 1
    reason = closes(found, MARGIN)
    assert (reason is None) is (
        found.gain_bound >= MARGIN and low > 0 and found.exposed_seconds >= high - low
    )
    assert justification(found).count("\n") == 0


@given(
    st.lists(st.tuples(TIMES, TIMES), min_size=LEAST_PAIRS, max_size=12),
    st.sampled_from([2.0**-7, 2.0, 1024.0]),
)
@settings(deadline=None)
def test_the_unit_of_time_does_not_matter(pairs: list[tuple[float, float]], factor: float) -> None:
    synced, unsynced = zip(*pairs, strict=True)
    found = measured(synced, unsynced)
    scaled = measured([factor * value for value in synced], [factor * value for value in unsynced])
    assert scaled.share == pytest.approx(found.share)
    assert scaled.gain_bound == pytest.approx(found.gain_bound)
