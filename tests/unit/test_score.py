import math

import pytest

from autotune.decide import probe_ratios, standings, winner
from autotune.outcome import Measurement, Probe
from tests.build import make_measurement, make_probe, make_setup

BASELINE = make_setup()
BF16 = make_setup(precision="bf16", grad_comm_dtype="bf16")
FP16 = make_setup(precision="fp16", grad_comm_dtype="fp16")


def backward(measurement: Measurement) -> float:
    return measurement.backward_tokens_per_second


def baseline(number: int, seconds: float, launch: int = 0) -> Probe:
    return make_probe(number, BASELINE, backward=seconds, launch=launch, baseline=True)


def test_throughput_is_applied_tokens_over_all_backward_seconds() -> None:
    clean = make_measurement(0.1, steps=4)
    skipping = make_measurement(0.1, steps=4, skipped=1)
    assert clean.backward_tokens_per_second == pytest.approx(10_000)
    assert skipping.backward_tokens_per_second == pytest.approx(7_500)


def test_a_ratio_is_interpolated_between_the_neighbouring_baselines() -> None:
    probes = [baseline(0, 0.1), make_probe(1, BF16, backward=0.1), baseline(2, 0.2)]
    assert probe_ratios(probes, backward)[1] == pytest.approx(math.sqrt(2))


def test_a_machine_that_slows_down_steadily_does_not_change_the_ratios() -> None:
    drift = [1.1**number for number in range(5)]
    probes = [
        baseline(0, 0.1 * drift[0]),
        *(make_probe(n, BF16, backward=0.05 * drift[n]) for n in (1, 2, 3)),
        baseline(4, 0.1 * drift[4]),
    ]
    ratios = probe_ratios(probes, backward)
    assert [ratios[n] for n in (1, 2, 3)] == pytest.approx([2.0, 2.0, 2.0])


def test_a_baseline_of_another_launch_is_not_used_while_there_is_one_of_the_same() -> None:
    probes = [
        baseline(0, 0.5, launch=0),
        baseline(1, 0.1, launch=1),
        make_probe(2, BF16, backward=0.05, launch=1),
        baseline(3, 0.5, launch=2),
    ]
    assert probe_ratios(probes, backward)[2] == pytest.approx(2.0)


def test_without_any_baseline_there_is_no_ratio() -> None:
    assert probe_ratios([make_probe(0, BF16)], backward) == {}


def test_failed_probes_have_no_ratio_and_no_standing() -> None:
    probes = [baseline(0, 0.1), make_probe(1, BF16, kind="oom")]
    assert probe_ratios(probes, backward) == {}
    assert [standing.setup for standing in standings(probes, BASELINE)] == [BASELINE]


def test_the_best_ratio_wins() -> None:
    probes = [
        baseline(0, 0.1),
        make_probe(1, FP16, backward=0.09),
        make_probe(2, BF16, backward=0.05),
    ]
    best = winner(standings(probes, BASELINE))
    assert best is not None
    assert best.setup == BF16
    assert best.ratio == pytest.approx(2.0)


def test_a_setup_that_is_slower_end_to_end_cannot_win() -> None:
    probes = [
        baseline(0, 0.1),
        make_probe(1, BF16, backward=0.05, end_to_end=0.6),
        make_probe(2, FP16, backward=0.08, end_to_end=0.4),
    ]
    best = winner(standings(probes, BASELINE))
    assert best is not None
    assert best.setup == FP16


def test_the_baseline_wins_when_everything_is_slower() -> None:
    probes = [baseline(0, 0.1), make_probe(1, BF16, backward=0.2)]
    best = winner(standings(probes, BASELINE))
    assert best is not None
    assert best.setup == BASELINE
