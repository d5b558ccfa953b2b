"""Warnings, with advice in the user's own settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autotune.outcome import Probe
from autotune.report import WarningKind, build_result
from autotune.report.drift import find_drift
from tests.build import make_measurement, make_probe
from tests.records import (
    BASELINE,
    BF16,
    BF16_FP32_WIRE,
    GAIN,
    SAME,
    UNCLEAR,
    about_of,
    blocks,
    run_of,
    searched,
)

STEADY_LEVELS = (1.0, 1.02, 0.99, 1.01, 0.98, 1.0)


def warnings(
    probes: Sequence[Probe], about: dict[str, Any] | None = None
) -> dict[str, dict[str, str]]:
    """The warnings of a run by kind; two of one kind would be a mistake here."""
    found = build_result("t", probes, about or about_of(BF16), run="runs/t")["warnings"]
    kinds = [item["kind"] for item in found]
    assert len(set(kinds)) == len(kinds)
    return {item["kind"]: item for item in found}


def quiet() -> list[Probe]:
    """A run that deserves no warning: the baseline repeats within half a percent."""
    probes = run_of({BF16: GAIN}, control=[1 + (ratio - 1) / 4 for ratio in SAME])
    return [
        replace(probe, outcome=replace(probe.outcome, measurement=make_measurement(0.1, steps=2)))
        if probe.number == 5
        else probe
        for probe in probes
    ]


def altered(probes: Sequence[Probe], share: float, **changes: Any) -> list[Probe]:
    """The probes, the first ``share`` of them with their measurement changed."""
    return [
        replace(
            probe,
            outcome=replace(
                probe.outcome, measurement=replace(probe.outcome.measurement, **changes)
            ),
        )
        if index < share * len(probes) and probe.outcome.measurement
        else probe
        for index, probe in enumerate(probes)
    ]


def baselines(values: Sequence[float], *, apart: bool) -> list[Probe]:
    """Baseline probes with these backward seconds, in one launch or each in its own."""
    return [
        make_probe(number, BASELINE, backward=seconds, baseline=True, launch=number if apart else 0)
        for number, seconds in enumerate(values)
    ]


def test_a_quiet_confirmed_run_has_no_warning() -> None:
    assert warnings(quiet()) == {}


def test_every_kind_of_warning_has_a_name_of_its_own_for_the_result_file() -> None:
    assert sorted(kind.value for kind in WarningKind) == [
        "backward-only",
        "budget",
        "busy",
        "control",
        "drift",
        "end-to-end",
        "few-launches",
        "gate",
        "gate-warning",
        "limits",
        "mean-median",
        "noise-above-margin",
        "skips",
        "throttled",
        "unconfirmed",
        "ungated",
        "unread",
        "unsteady-steps",
        "wire-at-scale",
    ]


def test_unsteady_steps_are_said_with_the_users_own_cap_and_a_larger_one() -> None:
    found = warnings(altered(quiet(), 0.5, steady=False))["unsteady-steps"]
    assert found["advice"] == "Raise measure.warm_up_cap from 12 to 24 in a sweep of another name."
    assert "unsteady-steps" not in warnings(altered(quiet(), 0.1, steady=False))


def test_the_advice_does_without_a_setting_that_the_run_did_not_keep() -> None:
    about = about_of(BF16, fingerprint={})
    found = warnings(altered(quiet(), 0.5, steady=False), about)["unsteady-steps"]
    assert found["advice"] == "Raise measure.warm_up_cap in a sweep of another name."


@pytest.mark.parametrize("apart", [False, True])
def test_a_baseline_that_becomes_slower_is_a_drift(apart: bool) -> None:
    values = [0.1 * 1.02**step * wobble for step, wobble in enumerate((1, 1.004, 0.998) * 3)]
    found = warnings(baselines(values, apart=apart), about_of())["drift"]
    where = "from launch 0 to launch 8" if apart else "over 9 probes in launch 0"
    assert f"slower {where}" in found["text"]
    assert found["text"].startswith("The baseline became 14.")


def test_noise_without_a_trend_is_no_drift() -> None:
    values = [0.1 * wobble for wobble in (1, 1.05, 0.96, 1.03, 0.97, 1.04, 0.98, 1.02)]
    assert find_drift(baselines(values, apart=True), None, math.log1p(0.01)) is None


def test_a_trend_within_the_noise_floor_or_the_margin_is_no_drift() -> None:
    values = [0.1 * 1.002**step for step in range(8)]
    assert find_drift(baselines(values, apart=False), 0.0, 0.01) is not None
    assert find_drift(baselines(values, apart=False), 0.01, 0.01) is None
    assert find_drift(baselines(values, apart=False), 0.0, 0.02) is None


def test_five_values_are_too_few_for_a_drift() -> None:
    values = [0.1 * 1.1**step for step in range(5)]
    assert find_drift(baselines(values, apart=True), None, 0.01) is None


def test_launches_with_few_baselines_do_not_hide_the_drift_of_a_long_one() -> None:
    probes = baselines([0.1 * 1.02**step for step in range(7)], apart=False)
    short = [0.1, 0.102, 0.1, 0.101]
    for launch in range(1, 5):
        probes += [replace(probe, launch=launch) for probe in baselines(short, apart=False)]
    found = find_drift(probes, None, 0.01)
    assert found is not None
    assert (found.launches, found.values) == ((0, 0), 7)


def test_a_baseline_that_never_varies_has_no_drift() -> None:
    assert find_drift(baselines([0.1] * 8, apart=True), 0.0, 0.0) is None


def test_noise_above_the_margin_says_what_can_be_resolved_here() -> None:
    found = warnings(run_of({BF16: GAIN}))["noise-above-margin"]
    assert found["text"] == "The noise floor of 1.1 % is above the margin of 1.0 %."
    assert found["advice"] == (
        "6 launches can confirm gains from about 2.6 % here; a gain of 2.0 % takes about 12."
    )
    assert "noise-above-margin" not in warnings(run_of({BF16: GAIN}), about_of(BF16, margin=0.02))


def test_a_hopeless_noise_floor_does_not_promise_a_number_of_launches() -> None:
    control = (1.0, 1.2, 0.8, 1.0, 0.8, 1.2)
    found = warnings(run_of({BF16: GAIN}, control=control))["noise-above-margin"]
    assert found["advice"].endswith("takes more than 200.")


def test_a_throttled_gpu_is_named_with_its_reasons() -> None:
    probes = quiet()
    for number, reason in ((3, "hw-thermal"), (7, "sw-power-cap")):
        outcome = replace(probes[number].outcome, throttled=(reason,))
        probes[number] = replace(probes[number], outcome=outcome)
    found = warnings(probes)["throttled"]
    assert found["text"] == (
        "A GPU lowered its clocks in 2 of 33 probes: hw-thermal, sw-power-cap."
    )


def test_other_processes_are_said_when_they_used_the_cores_in_many_probes() -> None:
    loud = [replace(probe, others_busy=0.4 if probe.number % 2 else 0.0) for probe in quiet()]
    found = warnings(loud)["busy"]
    assert found["text"] == (
        "Other processes used 19 % of the cores on average, and over 10 % of them in 16 of 33 "
        "probes."
    )
    assert "40 % at worst" in found["advice"]
    soft = [replace(probe, others_busy=0.4 if probe.number == 1 else 0.05) for probe in quiet()]
    assert "busy" not in warnings(soft)


def test_an_inconclusive_verdict_says_how_many_launches_would_decide() -> None:
    likely = (1.05, 1.01, 1.06, 0.99, 1.05, 1.02)
    found = warnings(run_of({BF16: likely}))["few-launches"]
    assert found["text"].startswith(f"6 launches leave the gain of {BF16.key} between -0.2 % and")
    assert found["advice"].startswith("At this spread about 28 would decide")
    assert found["advice"].endswith("autotune confirm runs/t --launches 28")


def test_where_no_number_of_launches_would_decide_that_is_said() -> None:
    found = warnings(run_of({BF16: UNCLEAR}))["few-launches"]
    assert "more than 200; raise measure.timed_steps from 10 to 20" in found["advice"]


def test_a_decided_verdict_asks_for_no_launches() -> None:
    assert "few-launches" not in warnings(run_of({BF16: GAIN}))


def test_a_baseline_that_differs_from_itself_is_said_and_more_launches_are_not_advised() -> None:
    control = (1.05, 1.06, 1.04, 1.05, 1.06, 1.05)
    found = warnings(run_of({BF16: GAIN}, control=control))
    assert found["control"]["text"].startswith("The baseline differs from itself: 1.039x to 1.064x")
    assert "few-launches" not in found


def test_stalled_steps_make_median_and_total_disagree() -> None:
    probes = altered(quiet(), 1.0, backward_seconds=(0.1, 0.1, 0.1, 0.4))
    about = about_of(most=0)  # nothing is confirmed, so the baseline is the winner
    found = warnings(probes, about)["mean-median"]
    assert found["text"] == (
        f"{BASELINE.key} makes 10,000 backward tokens a second at its median step and 5,714 over "
        "all steps; its slowest step took 4.0 times the median."
    )
    assert "raise measure.timed_steps from 10 to 20" in found["advice"]


def test_a_faster_backward_that_is_slower_end_to_end_is_said() -> None:
    probes = [
        make_probe(0, BASELINE, backward=0.1, end_to_end=0.5, baseline=True),
        make_probe(1, BF16, backward=0.05, end_to_end=0.6),
    ]
    about = about_of()
    del about["confirmations"]
    found = warnings(probes, about)["backward-only"]
    assert "slower end-to-end (0.83x) and cannot win" in found["text"]


def test_a_candidate_that_the_confirmation_found_slower_end_to_end_is_said() -> None:
    slow = (0.9, 0.91, 0.9, 0.89, 0.9, 0.91)
    gains = {BF16: GAIN, BF16_FP32_WIRE: [ratio - 0.1 for ratio in GAIN]}
    whole = {BF16: slow, BF16_FP32_WIRE: [1.1] * 6}
    probes = run_of(gains, end_to_end=whole)
    found = warnings(probes, about_of(BF16, BF16_FP32_WIRE))["backward-only"]
    assert found["text"].startswith(f"{BF16.key} has the faster backward (1.31x)")
    assert "(0.90x)" in found["text"]


def test_another_setup_that_is_better_end_to_end_is_said_and_can_be_exported() -> None:
    gains = {BF16: GAIN, BF16_FP32_WIRE: [ratio - 0.1 for ratio in GAIN]}
    whole = {BF16: [1.1] * 6, BF16_FP32_WIRE: [1.3] * 6}
    found = warnings(run_of(gains, end_to_end=whole), about_of(BF16, BF16_FP32_WIRE))["end-to-end"]
    assert found["text"] == (
        f"{BF16_FP32_WIRE.key} is the better one end-to-end: 1.30x against 1.10x of {BF16.key}."
    )
    assert f"--setup {BF16_FP32_WIRE.key}" in found["advice"]


def test_what_the_search_found_end_to_end_is_compared_with_the_search_alone() -> None:
    probes = quiet()
    assert "end-to-end" not in warnings(probes)  # 1.19x in the search, confirmed winner 1.15x
    probes[4] = make_probe(
        4, BF16_FP32_WIRE, measurement=make_measurement(0.075, end_to_end=0.3, steps=2)
    )
    assert warnings(probes)["end-to-end"]["text"].endswith(
        f"1.67x against 1.25x of {BF16.key} in the search."
    )


def test_a_difference_end_to_end_within_the_noise_is_not_said() -> None:
    gains = {BF16: GAIN, BF16_FP32_WIRE: [ratio - 0.1 for ratio in GAIN]}
    whole = {BF16: [1.30] * 6, BF16_FP32_WIRE: [1.31] * 6}
    found = warnings(run_of(gains, end_to_end=whole), about_of(BF16, BF16_FP32_WIRE))
    assert "end-to-end" not in found


def test_every_cut_of_the_budget_is_a_warning_with_the_users_own_budget() -> None:
    cuts = ["search: 3 of 5 setups were not tried", "confirm: 2 rivals were left out"]
    result = build_result("t", quiet(), about_of(BF16, cuts=cuts), run="runs/t")
    first, second = result["warnings"]
    assert first["text"].endswith("search: 3 of 5 setups were not tried.")
    assert first["advice"] == "Raise budget.minutes from 3 to 6 in a sweep of another name."
    assert second["advice"].startswith("autotune confirm runs/t ")


def test_an_unconfirmed_winner_says_how_to_go_on() -> None:
    about = about_of()
    del about["confirmations"]
    assert warnings(searched(), about)["unconfirmed"]["advice"] == (
        "Go on with autotune sweep FILE --resume."
    )
    again = about_of(BF16)
    again["confirmations"] *= 2
    probes = quiet()
    probes += blocks("confirm", {BF16: GAIN[:2]}, after=probes, round=1)
    assert warnings(probes, again)["unconfirmed"]["advice"] == (
        "Go on with autotune confirm runs/t --resume."
    )
