"""Numerics in the result: rows, the part of its own, and that a refused setup never wins."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.numerics.findings import Finding, Missing, WireErrors
from autotune.numerics.names import gates_name, trace_name, wires_name
from autotune.numerics.policy import expected_skips
from autotune.numerics.reduction import Prediction
from autotune.outcome import Probe
from autotune.report import build_result
from autotune.report.plain import plain
from tests.build import make_measurement, make_probe, make_setup
from tests.findings import CHOSEN, FP16, RANKS, TARGET, examined, make_findings, make_wires
from tests.readings import make_trace
from tests.records import (
    BASELINE,
    BF16,
    BF16_FP32_WIRE,
    FSDP,
    GAIN,
    about_of,
    blocks,
    run_of,
    searched,
    trained,
)

BAD: Mapping[str, Any] = {"gain": 0.5}


def result_of(
    findings: Mapping[str, Finding], probes: Sequence[Probe] | None = None, **about: Any
) -> dict[str, Any]:
    """The result of a confirmed run with these findings."""
    kept = about_of(BF16, **{"target": dict(TARGET), **about})
    return build_result("t", probes or run_of({BF16: GAIN}), kept, findings, run="runs/t")


def searching(findings: Mapping[str, Finding]) -> dict[str, Any]:
    """The result after the search, whose fastest setup is BF16."""
    about = about_of(target=dict(TARGET))
    del about["race"], about["confirmations"]
    return build_result("t", searched(), about, findings)


def row_of(result: Mapping[str, Any], key: str) -> dict[str, Any]:
    (row,) = [row for row in result["setups"] if row["key"] == key]
    found: dict[str, Any] = row
    return found


def test_a_run_without_findings_has_no_part_no_gates_and_no_warning_of_numerics() -> None:
    result = result_of({}, gates={"gain": 0.5})
    assert result["numerics"] is None
    assert all(row["gates"] == [] for row in result["setups"])
    assert {item["kind"] for item in result["warnings"]} == {"noise-above-margin"}


def test_the_part_has_the_keys_that_readers_know() -> None:
    part = result_of(make_findings())["numerics"]
    assert list(part) == [
        *("target", "communication", "wires", "loss_scale", "skips", "missing", "cost", "words")
    ]
    assert part["target"] == TARGET
    (communication,) = part["communication"]
    assert communication["reducer"] == "deepspeed stages 0 and 1"
    assert (communication["setup"], communication["closed"]) == (BF16_FP32_WIRE.key, False)
    assert part["missing"] == [{"name": "communication fsdp", "reason": "crash: because"}]


def test_a_run_that_kept_no_target_has_one_that_says_nothing() -> None:
    part = result_of(make_findings(), target=None)["numerics"]
    assert part["target"] == {
        **{"world_size": None, "steps": None, "learning_rate": None, "assumed": []}
    }


def test_a_chosen_loss_scale_stands_beside_what_the_framework_does() -> None:
    (choice,) = result_of(make_findings())["numerics"]["loss_scale"]
    assert (choice["scaler"], choice["steps"], choice["tried"]) == ("deepspeed", 10_000, 48)
    assert choice["chosen"]["policy"]["initial_power"] == 12
    assert choice["usual"]["policy"]["initial_power"] == 16
    assert choice["chosen"]["interval"] == [0.9981 - 1e-4, 0.9981]


@pytest.mark.parametrize(("ring", "grade"), [(0.009, "pass"), (0.012, "warn"), (0.06, "refuse")])
def test_each_wire_dtype_is_graded_by_the_limits_that_hold(ring: float, grade: str) -> None:
    findings: Mapping[str, Finding] = {wires_name(BF16, RANKS): make_wires(ring)}
    bf16, fp32 = result_of(findings)["numerics"]["wires"]
    assert (bf16["micro_batch"], bf16["world_size"], bf16["micro_batches"]) == (2, RANKS, 16)
    assert (bf16["wire"], bf16["ring"], bf16["grade"]) == ("bf16", ring, grade)
    assert (fp32["wire"], fp32["grade"]) == ("fp32", "pass")
    strict, _ = result_of(findings, gates={"wire-error": 0.001})["numerics"]["wires"]
    assert strict["grade"] == "refuse"
    assert "is refused" in strict["text"]


def test_an_error_that_leaves_nothing_is_null() -> None:
    lost = Prediction("fp16", RANKS, ring=math.inf, tree=math.inf, fp32_accumulate=0.1)
    errors = WireErrors(micro_batch=4, micro_batches=16, predictions=(lost,))
    result = result_of({wires_name(make_setup(micro_batch=4), RANKS): errors})
    (wire,) = result["numerics"]["wires"]
    assert (wire["ring"], wire["tree"], wire["fp32_accumulate"]) == (None, None, 0.1)
    assert (wire["micro_batch"], wire["grade"]) == (4, "refuse")
    json.dumps(result, allow_nan=False)


def test_no_reading_however_broken_breaks_the_json() -> None:
    broken = dict.fromkeys(
        (
            *("activation_absmax", "gain", "relative_error", "cosine", "worst_tensor_error"),
            *("underflow_fraction", "underflow_norm", "reference_norm", "moved_fraction"),
        ),
        math.nan,
    )
    losses = (math.nan,) * 20
    findings = make_findings(**examined(BF16, **broken, losses=losses), **examined(FP16, **broken))
    text = json.dumps(result_of(findings), allow_nan=False)
    assert '"outcome": "unsafe"' in text


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_every_value_becomes_one_that_json_has(value: object) -> None:
    found = plain(value)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_costs_are_those_of_the_phase_and_its_share_of_the_run() -> None:
    spent = about_of()["spent"]
    numerics = {"launches": 2, "probes": 0, "seconds": 30.0, "launch_seconds": 8.0}
    spent["numerics"] = {**numerics, "probe_seconds": 0.0}
    part = result_of(make_findings(), spent=spent)["numerics"]
    assert part["cost"] == {"seconds": 30.0, "share": 0.2}
    assert part["words"][-1] == "Numerics took 30.0 s, 20 % of the run."
    assert result_of(make_findings())["numerics"]["cost"] is None


def fp16_run(**counts: Any) -> list[Probe]:
    return trained(run_of({BF16: GAIN, FP16: GAIN}), **counts)


def test_skips_of_a_confirmation_are_added_up_and_held_against_the_replay() -> None:
    probes = fp16_run(steps=20, skips=1)
    (row,) = result_of(make_findings(), probes)["numerics"]["skips"]
    expected = expected_skips("deepspeed", CHOSEN, make_trace(), steps=20, probes=6)
    assert (row["key"], row["probes"], row["steps"], row["observed"]) == (FP16.key, 6, 120, 6)
    assert row["expected"] == [expected.low, expected.mean, expected.high]
    assert row["agrees"] is True
    assert row["text"] == (
        f"In 6 probes of {FP16.key} 6 of 120 steps were skipped for overflow; replay expects 0 "
        "(0 to 9)."
    )


def test_probes_of_different_lengths_are_expected_to_skip_by_their_own_lengths() -> None:
    probes = [
        *trained(run_of({FP16: GAIN})[:-1], steps=20, skips=0),
        *trained(run_of({FP16: GAIN})[-1:], steps=30, skips=1),
    ]
    (row,) = result_of(make_findings(), probes)["numerics"]["skips"]
    five = expected_skips("deepspeed", CHOSEN, make_trace(), steps=20, probes=5)
    one = expected_skips("deepspeed", CHOSEN, make_trace(), steps=30, probes=1)
    assert (row["steps"], row["observed"]) == (130, 1)
    assert row["expected"] == [
        *(five.low + one.low, five.mean + one.mean, pytest.approx(five.high + one.high))
    ]


def test_only_the_last_confirmation_is_counted_and_all_phases_where_there_is_none() -> None:
    search = trained([*searched(), make_probe(6, FP16)], steps=20, skips=9)
    (early,) = searching_with(search)["numerics"]["skips"]
    assert (early["probes"], early["observed"]) == (1, 9)
    first = trained(blocks("confirm", {FP16: GAIN}, after=search), steps=20, skips=9)
    last = trained(
        blocks("confirm", {FP16: GAIN}, after=[*search, *first], round=1), steps=20, skips=0
    )
    about = about_of(FP16, target=dict(TARGET))
    about["confirmations"] *= 2
    result = build_result("t", [*search, *first, *last], about, make_findings())
    (late,) = result["numerics"]["skips"]
    assert (late["probes"], late["observed"]) == (6, 0)


def searching_with(probes: Sequence[Probe]) -> dict[str, Any]:
    about = about_of(target=dict(TARGET))
    del about["race"], about["confirmations"]
    return build_result("t", probes, about, make_findings())


def test_without_a_trace_or_the_length_of_the_probes_no_skips_are_compared() -> None:
    findings = make_findings()
    del findings[trace_name(FP16)]
    assert result_of(findings, fp16_run())["numerics"]["skips"] == []
    untold = run_of({BF16: GAIN, FP16: GAIN})
    assert result_of(make_findings(), untold)["numerics"]["skips"] == []


def test_a_row_has_every_gate_with_its_limit_and_the_limit_s_source() -> None:
    result = result_of(make_findings(), gates={"loss-band": 0.02})
    gates = {gate["gate"]: gate for gate in row_of(result, BF16.key)["gates"]}
    assert list(gates["gain"]) == [
        *("gate", "status", "value", "limit", "text", "source", "changed")
    ]
    assert gates["gain"]["value"] == pytest.approx(0.0005)
    assert (gates["gain"]["limit"], gates["gain"]["changed"]) == (0.01, False)
    assert (gates["loss-band"]["limit"], gates["loss-band"]["changed"]) == (0.02, True)
    assert "activation-headroom" not in gates  # of fp16 alone
    assert row_of(result, BF16_FP32_WIRE.key)["gates"] == []


def test_a_row_has_the_useful_steps_of_the_last_probe_that_knows_them() -> None:
    probes = fp16_run(useful=0.99)
    latest = replace(make_measurement(), useful_step_fraction=0.97)
    more = [
        make_probe(len(probes), FP16, measurement=latest),
        make_probe(len(probes) + 1, FP16),
    ]
    result = result_of(make_findings(), [*probes, *more])
    assert row_of(result, FP16.key)["useful_step_fraction"] == 0.97
    assert row_of(result, BF16.key)["useful_step_fraction"] is None
    assert row_of(result, FSDP.key)["useful_step_fraction"] is None  # out of memory


def test_a_refused_setup_is_unsafe_and_keeps_its_numbers() -> None:
    row = row_of(searching(make_findings(**examined(BF16, **BAD))), BF16.key)
    assert row["outcome"] == "unsafe"
    assert row["reason"] == (
        "gain: the applied gradient is 0.5 times that of fp32, not within 1 +- 0.01"
    )
    assert row["ratio"] == pytest.approx(1.434, abs=0.001)


def test_a_baseline_beyond_a_limit_is_not_refused() -> None:
    result = result_of(make_findings(**examined(BASELINE, **BAD)))
    row = row_of(result, BASELINE.key)
    assert (row["outcome"], row["reason"]) == ("ok", None)
    assert "fail" in {gate["status"] for gate in row["gates"]}


def test_before_a_confirmation_the_fastest_setup_that_trains_is_the_winner() -> None:
    assert searching(make_findings())["winner"] == BF16.key
    result = searching(make_findings(**examined(BF16, **BAD)))
    assert (result["winner"], result["challenger"]) == (BF16_FP32_WIRE.key, BF16_FP32_WIRE.key)
    both = {**examined(BF16, **BAD), **examined(BF16_FP32_WIRE, **BAD)}
    result = searching(make_findings(**both))
    assert (result["winner"], result["challenger"]) == (BASELINE.key, None)


def test_a_limit_that_the_user_loosens_lets_the_setup_win_again() -> None:
    findings = make_findings(**examined(BF16, gain=0.95))
    about = about_of(target=dict(TARGET), gates={"gain": 0.1})
    del about["race"], about["confirmations"]
    assert searching(findings)["winner"] == BF16_FP32_WIRE.key
    assert build_result("t", searched(), about, findings)["winner"] == BF16.key


def test_the_search_s_own_winner_is_one_that_trains() -> None:
    findings = make_findings(**examined(BF16, **BAD))
    screening = result_of(findings)["screening"]
    assert screening["winner"] == BF16_FP32_WIRE.key


def test_a_confirmed_setup_beyond_a_limit_that_was_set_later_wins_no_more() -> None:
    behind = [ratio - 0.03 for ratio in GAIN]
    probes = run_of({BF16: GAIN, BF16_FP32_WIRE: behind})
    about = about_of(BF16, BF16_FP32_WIRE, target=dict(TARGET))
    findings = make_findings(**examined(BF16_FP32_WIRE, relative_error=1e-3))
    assert build_result("t", probes, about, findings)["winner"] == BF16.key
    result = build_result("t", probes, {**about, "gates": {"relative-error": 2e-3}}, findings)
    assert (result["verdict"], result["winner"]) == ("confirmed", BF16_FP32_WIRE.key)
    assert [item["key"] for item in result["candidates"]] == [BF16_FP32_WIRE.key]
    assert result["equivalent"] == [BF16_FP32_WIRE.key]
    (out,) = result["confirmation"]["out"]
    assert out["key"] == BF16.key
    assert out["reason"].startswith("unsafe: relative-error: ")


def test_where_no_candidate_is_left_the_baseline_is_what_to_use() -> None:
    result = result_of(make_findings(), gates={"relative-error": 1e-5})
    assert (result["verdict"], result["winner"]) == ("inconclusive", BASELINE.key)


def test_a_refused_setup_is_not_recommended_for_its_whole_step() -> None:
    probes = searched()
    probes[4] = make_probe(
        4, BF16_FP32_WIRE, measurement=make_measurement(0.075, end_to_end=0.3, steps=2)
    )
    about = about_of(target=dict(TARGET))
    del about["race"], about["confirmations"]

    def kinds(findings: Mapping[str, Finding]) -> set[str]:
        result = build_result("t", probes, about, findings)
        return {item["kind"] for item in result["warnings"]}

    assert "end-to-end" in kinds(make_findings())
    assert "end-to-end" not in kinds(make_findings(**examined(BF16_FP32_WIRE, **BAD)))


def test_a_setup_that_could_not_be_examined_is_not_refused() -> None:
    findings = make_findings(**{gates_name(BF16): Missing(reason="crash: because")})
    result = result_of(findings)
    assert result["winner"] == BF16.key
    assert row_of(result, BF16.key)["outcome"] == "ok"
    missing = {"name": gates_name(BF16), "reason": "crash: because"}
    assert missing in result["numerics"]["missing"]
