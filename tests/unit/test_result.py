"""The result file, from records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.console import (
    describe_probe,
    failure_lines,
    format_bytes,
    format_seconds,
    verdict_lines,
)
from autotune.errors import UsageError
from autotune.outcome import Probe
from autotune.report import build_result, find_probe, write_json
from tests.build import make_probe, make_setup

GOLDEN = Path(__file__).parents[1] / "golden" / "result" / "result.json"
BASELINE = make_setup()
BF16 = make_setup(precision="bf16", grad_comm_dtype="bf16")
FSDP = make_setup(backend="fsdp", precision="bf16", grad_comm_dtype="bf16")
ABOUT: dict[str, Any] = {
    "baseline": BASELINE.to_dict(),
    "removed": [{"restriction": "tf32-needs-ampere", "count": 3, "reason": "why"}],
    "planned": {"setups": 3, "probes": 10, "minutes": None},
    "spent": {"wall_seconds": 20.0, "launch_seconds": 5.0, "probe_seconds": 8.0, "launches": 1},
    "fingerprint": {"torch": "1"},
}


def records() -> list[Probe]:
    return [
        make_probe(0, BASELINE, backward=0.1, baseline=True),
        make_probe(1, BF16, backward=0.05, end_to_end=0.4),
        make_probe(2, FSDP, kind="oom"),
        make_probe(3, BASELINE, backward=0.1, baseline=True),
    ]


def test_the_result_is_the_golden_file(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", build_result("tried", records(), ABOUT))
    text = (tmp_path / "result.json").read_text()
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_the_winner_is_the_best_ratio_and_unconfirmed() -> None:
    result = build_result("tried", records(), ABOUT)
    assert (result["verdict"], result["interval"]) == ("unconfirmed", None)
    assert result["winner"] == BF16.key
    assert result["ratio"] == pytest.approx(2.0)
    assert any("Unconfirmed" in warning for warning in result["warnings"])


def test_a_failed_setup_has_its_reason_and_no_numbers() -> None:
    row = build_result("tried", records(), ABOUT)["setups"][-1]
    assert (row["key"], row["outcome"], row["reason"]) == (FSDP.key, "oom", "because")
    assert row["backward_seconds"] is None
    assert row["wire"] is None


def test_a_faster_backward_that_is_slower_end_to_end_is_said() -> None:
    probes = [
        make_probe(0, BASELINE, backward=0.1, end_to_end=0.5, baseline=True),
        make_probe(1, BF16, backward=0.05, end_to_end=0.6),
    ]
    result = build_result("tried", probes, ABOUT)
    assert result["winner"] == BASELINE.key
    assert any("slower end-to-end (0.83x) and cannot win" in note for note in result["warnings"])


def test_another_setup_that_is_better_end_to_end_is_said() -> None:
    probes = [
        make_probe(0, BASELINE, backward=0.1, end_to_end=0.5, baseline=True),
        make_probe(1, BF16, backward=0.05, end_to_end=0.4),
        make_probe(2, FSDP, backward=0.08, end_to_end=0.25),
    ]
    warnings = build_result("tried", probes, ABOUT)["warnings"]
    assert any(f"{FSDP.key} is the better one end-to-end" in note for note in warnings)


def test_without_a_measured_baseline_there_is_no_winner() -> None:
    result = build_result("tried", [make_probe(0, BF16)], ABOUT)
    assert result["winner"] is None
    assert verdict_lines(result) == ["UNCONFIRMED  nothing could be measured"]


def test_a_probe_is_found_by_the_key_of_its_setup() -> None:
    assert find_probe(records(), BF16.key).number == 1


@pytest.mark.parametrize(
    ("key", "message"), [("nonsense", "no setup 'nonsense'"), (FSDP.key, "never measured: oom")]
)
def test_an_export_of_what_was_not_measured_is_refused(key: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_probe(records(), key)


def test_writing_replaces_the_file_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    write_json(path, {"new": 1})
    assert json.loads(path.read_text()) == {"new": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_lines_for_people_say_what_was_measured() -> None:
    probes = records()
    line = describe_probe(probes[1], 2.0)
    assert line == (
        f"[  1] {BF16.key}  backward 50.0 ms  20,000 tok/s  2.00x baseline  wire fp32 4 kB"
    )
    assert describe_probe(probes[2], None) == f"[  2] {FSDP.key}  oom: because"
    result = build_result("tried", probes, ABOUT)
    assert verdict_lines(result)[0].startswith(f"UNCONFIRMED  {BF16.key}  2.00x the backward")
    assert failure_lines(result) == [f"oom  {FSDP.key}: because"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.0831, "83.1 ms"), (9.99, "9990.0 ms"), (12.5, "12.5 s")]
)
def test_seconds_are_milliseconds_while_they_are_small(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(None, "-"), (0, "0 B"), (10_486_272, "10.5 MB"), (2.5e13, "25 TB")]
)
def test_bytes_are_decimal(size: float | None, text: str) -> None:
    assert format_bytes(size) == text
