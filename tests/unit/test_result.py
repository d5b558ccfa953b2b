"""The result file, from records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.report import build_result, find_probe, write_json
from autotune.search import Store
from autotune.wiring.results import result_of
from tests.build import make_measurement, make_probe, make_setup
from tests.findings import FP16, TARGET, examined, make_findings
from tests.records import (
    BASELINE,
    BF16,
    BF16_FP32_WIRE,
    FSDP,
    GAIN,
    NO_GAIN,
    STAGE3,
    UNCLEAR,
    about_of,
    blocks,
    run_of,
    searched,
    trained,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "result" / "result.json"
UNSAFE = make_setup(precision="fp16", grad_comm_dtype="fp16", zero_stage=0)
ALMOST = tuple(ratio - 0.03 for ratio in GAIN)  # of a second candidate, always behind BF16


def confirmed() -> dict[str, Any]:
    probes = run_of({BF16: GAIN, BF16_FP32_WIRE: ALMOST})
    return build_result("tried", probes, about_of(BF16, BF16_FP32_WIRE))


def with_findings() -> dict[str, Any]:
    """A confirmed result with a finding of every kind, an fp16 candidate and a refused setup."""
    probes = trained(run_of({BF16: GAIN, FP16: ALMOST}), skips=1, useful=0.9981)
    probes.append(make_probe(len(probes), UNSAFE, backward=0.06, end_to_end=0.4))
    about = about_of(BF16, FP16, target=dict(TARGET), gates={"loss-band": 0.02})
    findings = make_findings(**examined(FP16), **examined(UNSAFE, gain=1e-5))
    return build_result("tried", probes, about, findings)


def searching() -> dict[str, Any]:
    """The result after the search."""
    about = about_of()
    del about["race"], about["confirmations"]
    return build_result("tried", searched(), about)


def rounded(value: Any) -> Any:
    """Floats to nine digits: the last ones depend on the C library and on scipy."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_the_result_is_the_golden_file(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", rounded(with_findings()))
    text = (tmp_path / "result.json").read_text()
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_a_gain_in_every_launch_is_confirmed_with_an_interval_from_the_confirmation() -> None:
    result = confirmed()
    assert (result["verdict"], result["winner"]) == ("confirmed", BF16.key)
    assert result["challenger"] == BF16.key
    low, high = result["interval"]
    assert 1.28 < low < result["ratio"] < high < 1.34
    assert result["confidence"] == pytest.approx(0.975)  # two candidates share the errors
    assert result["launches"] == 6
    assert [item["key"] for item in result["candidates"]] == [BF16.key, BF16_FP32_WIRE.key]
    assert result["equivalent"] == [BF16.key]
    assert result["control"]["interval"][0] < 1 < result["control"]["interval"][1]


def test_what_the_search_found_is_labelled_optimistic_and_stands_apart() -> None:
    screening = confirmed()["screening"]
    assert screening["optimistic"] is True
    assert screening["winner"] == BF16.key
    assert screening["ratio"] == pytest.approx(1.43, abs=0.01)
    assert [item["key"] for item in screening["entrants"]] == [BF16.key, BF16_FP32_WIRE.key]


def test_the_race_says_how_many_blocks_it_took_and_who_left_why() -> None:
    race = confirmed()["race"]
    assert race["blocks"] == 3
    assert [item["key"] for item in race["out"]] == [BF16_FP32_WIRE.key]
    assert race["out"][0]["reason"].startswith(f"behind {BF16.key} by")


def test_without_a_gain_the_baseline_is_kept_and_the_challenger_has_its_interval() -> None:
    result = build_result("tried", run_of({BF16: NO_GAIN}), about_of(BF16))
    assert (result["verdict"], result["winner"]) == ("keep-baseline", BASELINE.key)
    assert result["challenger"] == BF16.key
    assert result["interval"][1] < 1.01


def test_a_gain_that_is_within_the_noise_is_inconclusive() -> None:
    result = build_result("tried", run_of({BF16: UNCLEAR}), about_of(BF16))
    assert result["verdict"] == "inconclusive"
    assert "contains 1 + margin" in result["why"]


def test_a_larger_margin_asks_for_more() -> None:
    probes = run_of({BF16: GAIN})
    result = build_result("tried", probes, about_of(BF16, margin=0.5))
    assert (result["verdict"], result["margin"]) == ("keep-baseline", 0.5)


def test_without_any_candidate_the_baseline_is_kept_and_nothing_is_claimed() -> None:
    result = build_result("tried", searched(), about_of())
    assert (result["verdict"], result["winner"]) == ("keep-baseline", BASELINE.key)
    assert result["challenger"] is result["ratio"] is result["interval"] is None


def test_before_a_confirmation_the_winner_of_the_search_is_unconfirmed() -> None:
    result = searching()
    assert (result["verdict"], result["interval"]) == ("unconfirmed", None)
    assert (result["winner"], result["challenger"]) == (BF16.key, BF16.key)
    assert result["ratio"] == pytest.approx(1.434, abs=0.001)
    assert (result["screening"], result["race"], result["confirmation"]) == (None, None, None)
    assert result["launches"] == 1


def test_an_interrupted_confirmation_is_unconfirmed_and_says_how_far_it_got() -> None:
    result = build_result("tried", run_of({BF16: GAIN[:4]}), about_of(BF16))
    assert result["verdict"] == "unconfirmed"
    assert result["why"] == "the confirmation was interrupted after 4 of 6 launches"
    assert result["confirmation"] == {
        "round": 0,
        "blocks": 4,
        "wanted": 6,
        "most": 6,
        "out": [],
    }


def test_a_baseline_that_failed_twice_in_a_row_leaves_the_confirmation_to_be_resumed() -> None:
    probes = run_of({BF16: GAIN[:3]})
    for launch in (7, 8):
        number = len(probes)
        probes.append(
            make_probe(
                number, BASELINE, baseline=True, kind="crash", phase="confirm", launch=launch
            )
        )
    assert build_result("tried", probes, about_of(BF16))["verdict"] == "unconfirmed"


def test_a_confirmation_that_the_budget_ended_is_judged_by_what_it_has() -> None:
    about = about_of(BF16)
    running = build_result("tried", run_of({BF16: GAIN[:4]}), about)
    assert running["verdict"] == "unconfirmed"
    about["confirmations"][-1]["ended"] = 4
    ended = build_result("tried", run_of({BF16: GAIN[:4]}), about)
    assert (ended["verdict"], ended["launches"]) == ("inconclusive", 4)
    assert "too few" in ended["why"]


def test_a_later_confirmation_replaces_the_first_and_uses_its_own_probes_alone() -> None:
    probes = run_of({BF16: GAIN})
    probes += blocks("confirm", {BF16: NO_GAIN}, after=probes, round=1)
    about = about_of(BF16)
    about["confirmations"] *= 2
    result = build_result("tried", probes, about)
    assert (result["verdict"], result["launches"]) == ("keep-baseline", 6)
    assert result["confirmation"]["round"] == 1
    assert result["race"]["blocks"] == 3


def test_a_candidate_that_fails_in_the_confirmation_is_out_with_its_reason() -> None:
    probes = run_of({BF16: GAIN, BF16_FP32_WIRE: ALMOST})
    failed = [
        replace(probe, outcome=replace(probe.outcome, kind="oom", reason="no room"))
        if probe.phase == "confirm" and probe.setup == BF16_FP32_WIRE and probe.block == 0
        else probe
        for probe in probes
    ]
    result = build_result("tried", failed, about_of(BF16, BF16_FP32_WIRE))
    out = [{"key": BF16_FP32_WIRE.key, "reason": "oom: no room"}]
    assert result["confirmation"]["out"] == out
    assert [item["key"] for item in result["candidates"]] == [BF16.key]


def test_rows_hold_the_probes_of_all_phases_and_the_ratio_of_the_search_alone() -> None:
    row = confirmed()["setups"][0]
    assert (row["key"], row["probes"], row["races"]) == (BF16.key, 10, 9)
    assert row["ratio"] == pytest.approx(1.434, abs=0.001)


def test_throughput_stands_there_at_the_median_step_and_over_all_steps() -> None:
    stalled = make_measurement(0.1, slowest=0.7)
    (row,) = build_result(
        "tried", [make_probe(0, BASELINE, baseline=True, measurement=stalled)], about_of()
    )["setups"]
    assert row["median_backward_tokens_per_second"] == pytest.approx(10_000)
    assert row["backward_tokens_per_second"] == pytest.approx(4_000)


def test_a_failed_setup_has_its_reason_and_no_numbers() -> None:
    rows = {row["key"]: row for row in searching()["setups"]}
    assert (rows[FSDP.key]["outcome"], rows[FSDP.key]["reason"]) == ("oom", "because")
    assert rows[FSDP.key]["backward_seconds"] is None
    assert rows[FSDP.key]["wire"] is None
    assert (rows[STAGE3.key]["outcome"], rows[STAGE3.key]["reason"]) == ("pruned", "because")


def test_every_probe_is_there_with_its_raw_step_times() -> None:
    probes = run_of({BF16: GAIN})
    rows = build_result("tried", probes, about_of(BF16))["measurements"]
    assert [row["number"] for row in rows] == list(range(len(probes)))
    assert rows[1]["backward_seconds"] == [0.07, 0.07]
    assert rows[2]["backward_seconds"] is None
    last = rows[-1]
    assert (last["phase"], last["block"], last["control"], last["key"]) == (
        "confirm",
        5,
        False,
        BF16.key,
    )
    assert sum(row["control"] for row in rows) == 6


def test_losses_that_are_not_finite_do_not_break_the_json() -> None:
    diverged = replace(make_measurement(), losses=(1.0, float("nan"), float("inf"), 1.0))
    probes = [*searched(), make_probe(6, FSDP, kind="unsafe", measurement=diverged)]
    result = build_result("tried", probes, about_of())
    assert result["measurements"][-1]["losses"] == [1.0, None, None, 1.0]
    json.dumps(result, allow_nan=False)


def test_what_was_spent_is_summed_over_the_phases() -> None:
    spent = confirmed()["spent"]
    assert (spent["launches"], spent["wall_seconds"]) == (10, 120.0)
    assert (spent["probes"], spent["saved_seconds"]) == (39, 1.5)
    assert spent["phases"]["race"]["launches"] == 3


def test_what_was_not_kept_of_the_costs_is_null_and_not_zero() -> None:
    spent = build_result("tried", searched(), about_of(spent={}))["spent"]
    assert (spent["launches"], spent["wall_seconds"], spent["probes"]) == (None, None, 6)


def test_the_noise_floor_is_that_of_the_baseline_against_itself_in_one_launch() -> None:
    assert searching()["noise_floor"] == pytest.approx(0.0198, abs=1e-4)  # 0.1 s, then 0.102 s


def test_without_a_measured_baseline_there_is_no_winner() -> None:
    about = about_of()
    del about["confirmations"]
    result = build_result("tried", [make_probe(0, BF16)], about)
    assert (result["winner"], result["ratio"]) == (None, None)
    assert result["why"] == "the baseline was not measured"


def test_a_replay_is_marked() -> None:
    assert build_result("tried", searched(), about_of(replay=True))["replay"] is True
    assert confirmed()["replay"] is False


def test_a_probe_is_found_by_the_key_of_its_setup() -> None:
    assert find_probe(searched(), BF16.key).number == 1


@pytest.mark.parametrize(
    ("key", "message"), [("nonsense", "no setup 'nonsense'"), (FSDP.key, "never measured: oom")]
)
def test_an_export_of_what_was_not_measured_is_refused(key: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_probe(searched(), key)


def test_a_value_that_json_lacks_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "result.json", {"ratio": float("nan")})
    assert not (tmp_path / "result.json").exists()


def test_the_result_of_a_run_has_what_its_store_has_found() -> None:
    store = Store(None, create=True)
    store.describe({"name": "tried", **about_of(target=dict(TARGET))})
    assert result_of(store)["numerics"] is None
    for name, finding in make_findings().items():
        store.find(name, finding)
    assert result_of(store)["numerics"]["target"] == TARGET


def test_writing_replaces_the_file_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    write_json(path, {"new": 1})
    assert json.loads(path.read_text()) == {"new": 1}
    assert list(tmp_path.iterdir()) == [path]
