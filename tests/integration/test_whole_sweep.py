"""One whole sweep, killed in each of its phases, and what can be asked of it afterwards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from autotune.numerics.findings import Finding
from autotune.outcome import PHASES, Probe
from autotune.search import Store
from tests.conftest import WORKLOADS
from tests.integration.test_sweep import (
    autotune,
    searched,
    started,
    stored,
    wait_for_line,
    wait_until_gone,
    workers,
)

# Four backward calls a step or one: two setups are four times as fast as the baseline, and alike.
STEADY = """
version: 1
name: tried
workload:
  python: steady:factory
  micro_batch: 1
  gradient_accumulation: 4
launch: {local: {ranks: 2, deadline_seconds: 60}}
space:
  backend: deepspeed
  precision: fp32
  grad_comm_dtype: fp32
  zero_stage: 1
  micro_batch: [1, 4]
  bucket_bytes: [25e6, 26e6]
baseline: {backend: deepspeed, precision: fp32, zero_stage: 1, micro_batch: 1, bucket_bytes: 25e6}
budget: {probes: 90}
measure: {warm_up_steps: 1, warm_up_cap: 1, timed_steps: 3, end_to_end_steps: 1, gate_steps: 8}
"""
FASTER = {f"deepspeed.z1.fp32.wire-fp32.mb4x1.bucket{size}" for size in (25_000_000, 26_000_000)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole sweep: search, race, confirmation; killed in each of them."""
    folder = tmp_path_factory.mktemp("finished")
    shutil.copy(WORKLOADS / "steady.py", folder)
    (folder / "sweep.yaml").write_text(STEADY)
    sweep_with_a_kill_in_each_phase(folder)
    return folder


# What a phase announces itself with, and how each of its lines begins.
LINES = {"search:": "[", "gates:": "deepspeed.", "race:": "[", "confirm:": "["}


def sweep_with_a_kill_in_each_phase(folder: Path) -> None:
    before: list[Probe] = []
    known: dict[str, Finding] = {}
    for phase, line in LINES.items():
        with started("sweep", "sweep.yaml", "--resume", folder=folder) as running:
            wait_for_line(running, phase)
            wait_for_line(running, line)
            wait_for_line(running, line)
            pids = workers(folder)
            running.kill()
        assert len(pids) >= 2
        assert wait_until_gone(pids, 10)
        kept, found = stored(folder), Store(folder / "runs/tried", create=False).findings()
        assert kept[: len(before)] == before
        assert {name: found[name] for name in known} == known
        assert len(kept) > len(before) or len(found) > len(known)
        before, known = kept, found
    assert len(known) == 3
    done = autotune("sweep", "sweep.yaml", "--resume", folder=folder)
    assert done.returncode == 0, done.stderr
    assert stored(folder)[: len(before)] == before
    assert Store(folder / "runs/tried", create=False).findings() == known


@pytest.mark.timeout(900)
def test_a_sweep_killed_in_each_phase_loses_nothing_and_ends_with_a_verdict(
    finished: Path,
) -> None:
    assert set(searched(finished).values()) == {1}
    assert len(searched(finished)) == 3
    result = json.loads((finished / "runs/tried/result.json").read_text())
    assert result["verdict"] == "confirmed"
    assert result["winner"] in FASTER
    assert result["launches"] >= 6
    assert 2 < result["interval"][0] <= result["ratio"] <= result["interval"][1] < 5
    assert result["noise_floor"] > 0
    assert set(result["spent"]["phases"]) == set(PHASES)
    assert result["spent"]["probes"] == len(result["measurements"]) == len(stored(finished))
    assert result["spent"]["probes"] <= 90


def test_show_prints_what_the_result_file_holds(finished: Path) -> None:
    result = json.loads((finished / "runs/tried/result.json").read_text())
    shown = autotune("show", "runs/tried", "--json", folder=finished)
    assert json.loads(shown.stdout) == result
    table = autotune("show", "runs/tried", folder=finished)
    assert all(row["key"] in table.stdout for row in result["setups"])
    assert len(result["setups"]) == 4
    assert table.stdout.startswith(result["verdict"].upper())


def test_a_finished_run_is_not_measured_again(finished: Path) -> None:
    result = json.loads((finished / "runs/tried/result.json").read_text())
    again = autotune("sweep", "sweep.yaml", folder=finished)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr
    resumed = autotune("sweep", "sweep.yaml", "--resume", "--json", folder=finished)
    assert resumed.returncode == 0
    assert json.loads(resumed.stdout)["winner"] == result["winner"]
    assert "starting" not in resumed.stderr  # nothing was left to measure


def test_a_plan_takes_its_costs_from_a_run_of_the_same_workload(finished: Path) -> None:
    planned = autotune("plan", "sweep.yaml", folder=finished)
    assert planned.returncode == 0
    assert "4 setups to try" in planned.stdout
    assert "expected cost, from the run in runs/tried" in planned.stdout
    assert "starting" not in planned.stderr


def test_a_replay_starts_no_worker_and_writes_nothing(finished: Path) -> None:
    before = sorted(finished.rglob("*"))
    done = autotune("sweep", "--replay", "runs/tried", "--json", folder=finished)
    assert done.returncode in (0, 1), done.stderr
    result = json.loads(done.stdout)
    assert result["replay"]
    assert (done.returncode, result["verdict"]) == (0, "confirmed")
    assert sorted(finished.rglob("*")) == before
    again = autotune("sweep", "--replay", "runs/tried", "--json", folder=finished)
    same = ("verdict", "winner", "ratio", "interval")
    assert all(json.loads(again.stdout)[name] == result[name] for name in same)
    other = autotune("sweep", "--replay", "runs/tried", "--seed", "1", "--json", folder=finished)
    assert json.loads(other.stdout)["ratio"] != result["ratio"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_later_confirmation_names_its_candidates_and_takes_fresh_launches(
    finished: Path,
) -> None:
    before = stored(finished)
    (wanted,) = {p.setup.key for p in before if p.setup.micro_batch == 4} - {
        json.loads((finished / "runs/tried/result.json").read_text())["winner"]
    }
    arguments = ("confirm", "runs/tried", "--setup", wanted, "--launches", "6", "--json")
    done = autotune(*arguments, folder=finished)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["verdict"], result["winner"]) == ("confirmed", wanted)
    assert result["launches"] == 6
    assert result["challenger"] == wanted
    fresh = stored(finished)[len(before) :]
    assert {(probe.phase, probe.round) for probe in fresh} == {("confirm", 1)}
    assert len({probe.launch for probe in fresh}) == 6
    assert {probe.launch for probe in fresh}.isdisjoint(probe.launch for probe in before)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("torch", "1.0", "was measured with torch = '1.0'"),
        ("world_size", 8, "was measured with world_size = 8"),
    ],
)
def test_resuming_and_confirming_under_other_conditions_is_refused(
    finished: Path, tmp_path: Path, field: str, value: Any, words: str
) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    store = Store(tmp_path / "runs" / "tried", create=False)
    store.describe({"fingerprint": {**store.about["fingerprint"], field: value}})
    for command in (("sweep", "sweep.yaml", "--resume"), ("confirm", "runs/tried")):
        done = autotune(*command, folder=tmp_path)
        assert done.returncode == 2
        assert words in done.stderr
