"""Whole sweeps through the command line, on real workers."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.outcome import PHASES, Probe
from autotune.search import Store
from tests.conftest import WORKLOADS

# The budget holds a search alone.
SHORT = """
version: 1
name: tried
workload:
  gpt: {layers: 2, width: 32, heads: 2, vocab: 64, sequence: 16}
  micro_batch: 2
  gradient_accumulation: 2
launch: {local: {ranks: 2, deadline_seconds: 60}}
space:
  backend: [deepspeed, fsdp]
  precision: [fp32, bf16]
  grad_comm_dtype: bf16
  zero_stage: [2, 3]
  bucket_bytes: 25e6
baseline: {backend: deepspeed, precision: fp32, zero_stage: 3, grad_comm_dtype: fp32}
budget: {probes: 20}
measure: {warm_up_steps: 1, warm_up_cap: 1, timed_steps: 2, end_to_end_steps: 1, gate_steps: 8}
"""
SETUPS = 8

HOSTILE = """
version: 1
name: tried
workload:
  python: hostile:factory
  args: {{how: {how}, only: 1}}
  micro_batch: 2
  gradient_accumulation: 2
launch: {{local: {{ranks: 2, deadline_seconds: 8}}}}
space:
  backend: fsdp
  precision: fp32
  grad_comm_dtype: fp32
  zero_stage: 3
  micro_batch: [1, 2, 4]
baseline: {{micro_batch: 2}}
budget: {{probes: 20}}
measure: {{warm_up_steps: 1, warm_up_cap: 1, timed_steps: 2, end_to_end_steps: 1, gate_steps: 8}}
"""


def autotune(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def started(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "autotune", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True) as running:
        yield running


def wait_for_line(process: subprocess.Popen[str], start: str) -> None:
    """Reads progress up to a line that begins so."""
    assert process.stderr is not None
    read = []
    for line in process.stderr:
        read.append(line)
        if line.startswith(start):
            return
    raise AssertionError(f"the sweep ended before {start!r}:\n{''.join(read[-20:])}")


def wait_for_probes(process: subprocess.Popen[str], count: int) -> None:
    """Reads progress until ``count`` probes are finished."""
    wait_for_line(process, f"[{count - 1:3d}]")


def workers(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("runs/*/launches/*/rank*.pid")]


def wait_until_gone(pids: Sequence[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(psutil.pid_exists, pids)):
        time.sleep(0.1)
    return not any(map(psutil.pid_exists, pids))


def stored(folder: Path) -> list[Probe]:
    return Store(folder / "runs" / "tried", create=False).probes()


def searched(folder: Path) -> Counter[str]:
    probes = [probe for probe in stored(folder) if probe.phase == "search"]
    return Counter(probe.setup.key for probe in probes if not probe.baseline)


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    shown = autotune("show", "runs/tried", "--json", folder=folder)
    assert shown.returncode == 0, shown.stderr
    return {row["key"]: row for row in json.loads(shown.stdout)["setups"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sweep.yaml").write_text(SHORT)
    return tmp_path


def test_a_plan_without_one_measures_the_baseline_in_one_launch(folder: Path) -> None:
    planned = autotune("plan", "sweep.yaml", "--json", folder=folder)
    assert planned.returncode == 0
    assert planned.stderr.count("starting") == 1
    described = json.loads(planned.stdout)["planned"]
    assert described["from"] == "one calibrating launch"
    assert set(described["phases"]) == set(PHASES)
    low, high = described["phases"]["search"]["minutes"]
    assert 0 < low <= high
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("raise", "crash"),
        pytest.param("exit", "crash", marks=pytest.mark.slow),
        pytest.param("sleep", "hang", marks=pytest.mark.slow),
        pytest.param("sigkill-on-rank-1", "crash", marks=pytest.mark.slow),
    ],
)
def test_a_workload_that_breaks_for_one_setup_costs_one_probe_and_not_the_sweep(
    tmp_path: Path, how: str, kind: str
) -> None:
    shutil.copy(WORKLOADS / "hostile.py", tmp_path)
    (tmp_path / "sweep.yaml").write_text(HOSTILE.format(how=how))
    done = autotune("sweep", "sweep.yaml", folder=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    found = rows(tmp_path)
    outcomes = {key: row["outcome"] for key, row in found.items()}
    assert outcomes == {
        "fsdp.z3.fp32.wire-fp32.mb1x4": kind,
        "fsdp.z3.fp32.wire-fp32.mb2x2": "ok",
        "fsdp.z3.fp32.wire-fp32.mb4x1": "ok",
    }
    assert found["fsdp.z3.fp32.wire-fp32.mb1x4"]["probes"] == 1
    assert found["fsdp.z3.fp32.wire-fp32.mb1x4"]["log"]
    assert wait_until_gone(workers(tmp_path), 1)


def test_ctrl_c_stops_after_the_running_probe_and_prints_how_to_go_on(folder: Path) -> None:
    with started("sweep", "sweep.yaml", folder=folder) as running:
        wait_for_probes(running, 3)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "continue with: autotune sweep sweep.yaml --resume" in errors
    assert "Traceback" not in errors
    assert wait_until_gone(workers(folder), 1)
    assert 2 <= sum(searched(folder).values()) < SETUPS
    assert autotune("sweep", "sweep.yaml", "--resume", folder=folder).returncode in (0, 1)
    assert set(searched(folder).values()) == {1}


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once(folder: Path) -> None:
    shutil.copy(WORKLOADS / "hostile.py", folder)
    text = HOSTILE.format(how="sleep").replace("deadline_seconds: 8", "deadline_seconds: 300")
    (folder / "sweep.yaml").write_text(text)
    with started("sweep", "sweep.yaml", folder=folder) as running:
        wait_for_probes(running, 1)
        time.sleep(6)  # one of the two probes that follow sleeps for ever
        for _ in range(2):
            running.send_signal(signal.SIGINT)
            time.sleep(0.5)
        _, errors = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "Traceback" not in errors
    assert wait_until_gone(workers(folder), 5)


def test_resuming_what_was_measured_on_another_workload_is_refused(folder: Path) -> None:
    with started("sweep", "sweep.yaml", folder=folder) as running:
        wait_for_probes(running, 1)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    (folder / "sweep.yaml").write_text(SHORT.replace("width: 32", "width: 64"))
    done = autotune("sweep", "sweep.yaml", "--resume", folder=folder)
    assert done.returncode == 2
    assert "was measured with workload" in done.stderr


def test_a_baseline_that_cannot_run_is_an_environment_error(tmp_path: Path) -> None:
    shutil.copy(WORKLOADS / "hostile.py", tmp_path)
    (tmp_path / "sweep.yaml").write_text(HOSTILE.format(how="raise").replace("only: 1", "only: 2"))
    done = autotune("sweep", "sweep.yaml", folder=tmp_path)
    assert done.returncode == 3
    assert "the workload is broken" in done.stderr
    assert "Name a baseline that trains here" in done.stderr
    assert "autotune/sweep.py" not in done.stderr


@pytest.mark.slow
def test_a_budget_on_the_command_line_is_kept_and_what_it_cuts_is_said(folder: Path) -> None:
    done = autotune("sweep", "sweep.yaml", "--budget", "19p", "--json", folder=folder)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert (result["planned"]["setups"], result["planned"]["probes"]) == (SETUPS, 19)
    assert result["spent"]["probes"] <= 19
    assert result["verdict"] == "inconclusive"
    assert any("setups were not tried" in cut for cut in result["cuts"])
    assert any(cut.startswith("confirm: skipped") for cut in result["cuts"])


def test_exporting_the_winner_again_writes_the_same_files(folder: Path) -> None:
    assert autotune("sweep", "sweep.yaml", folder=folder).returncode in (0, 1)
    result = json.loads((folder / "runs/tried/result.json").read_text())
    probes = Store(folder / "runs" / "tried", create=False).probes()
    export = ("export", "runs/tried", "--to", "launch", "-o", "tuned")
    first = autotune(*export, folder=folder)
    assert first.returncode == 0, first.stderr
    written = {path.name: path.read_bytes() for path in (folder / "tuned").iterdir()}
    measured = [probe.rendered for probe in probes if probe.setup.key == result["winner"]]
    (configuration,) = [
        text.decode()
        for name, text in written.items()
        if name in ("ds_config.json", "fsdp_setup.py")
    ]
    assert any(configuration.endswith(text) for text in measured)
    assert autotune(*export, folder=folder).returncode == 0
    assert {path.name: path.read_bytes() for path in (folder / "tuned").iterdir()} == written
    other = next(row["key"] for row in result["setups"] if row["key"] != result["winner"])
    refused = autotune(*export, "--setup", other, folder=folder)
    assert refused.returncode == 2
    assert "use --force to replace" in refused.stderr


@pytest.mark.slow
def test_a_template_folder_of_the_user_overrides_by_name_and_changing_it_ends_the_run(
    folder: Path,
) -> None:
    shipped = Path(__file__).parents[2] / "templates" / "fsdp" / "fsdp_setup.py.j2"
    mine = folder / "mine" / "fsdp" / "fsdp_setup.py.j2"
    mine.parent.mkdir(parents=True)
    mine.write_text("# mine\n" + shipped.read_text())
    text = SHORT.replace("[deepspeed, fsdp]", "fsdp")
    (folder / "sweep.yaml").write_text(text + "templates: mine\n")
    assert autotune("sweep", "sweep.yaml", folder=folder).returncode in (0, 1)
    probes = Store(folder / "runs" / "tried", create=False).probes()
    texts = [probe.rendered for probe in probes if probe.setup.backend == "fsdp"]
    assert texts
    assert all(text.startswith("# mine\n") for text in texts)
    mine.write_text("# changed\n" + shipped.read_text())
    resumed = autotune("sweep", "sweep.yaml", "--resume", folder=folder)
    assert resumed.returncode == 2
    assert "was measured with templates" in resumed.stderr
