"""Real workers that misbehave: each costs one probe, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.launch import Launch, LaunchFailedError, LocalLauncher
from autotune.launch.load import OtherLoad
from autotune.request import Measure
from autotune.workload import PythonFactory, Workload
from tests.build import make_setup
from tests.conftest import WORKLOADS, hostile, request_for

SETUP = make_setup()


def worker_pids(launch_folder: Path) -> list[int]:
    return [int(path.read_text()) for path in launch_folder.glob("rank*.pid")]


def gone(pids: list[int]) -> bool:
    return all(not psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize(
    ("how", "kind", "reason"),
    [
        ("raise", "crash", "ValueError: the workload is broken (hostile.py:"),
        pytest.param(
            "raise-on-rank-1",
            "crash",
            "Rank 1, phase 'wire': ValueError: the workload is",
            marks=pytest.mark.slow,
        ),
        pytest.param("exit", "crash", "The workload called exit with 3", marks=pytest.mark.slow),
        pytest.param(
            "exit-silently",
            "crash",
            "The workers ended in phase 'wire' without a word",
            marks=pytest.mark.slow,
        ),
        ("sigkill-on-rank-1", "crash", "Rank 1 died of SIGKILL in phase 'wire'"),
        pytest.param(
            "segfault", "crash", "died of SIGSEGV in phase 'wire'", marks=pytest.mark.slow
        ),
        ("oom", "oom", "Out of memory"),
    ],
)
def test_a_workload_that_breaks_is_an_outcome_and_its_workers_are_gone(
    launcher: LocalLauncher, how: str, kind: str, reason: str
) -> None:
    launch = launcher.start(0)
    pids = worker_pids(launcher.folder / "000")
    outcome = launch.probe(request_for(SETUP, workload=hostile(how)), 60)
    assert len(pids) == 2
    assert outcome.kind == kind
    assert outcome.reason is not None
    assert reason in outcome.reason
    assert not launch.alive
    assert gone(pids)


UNEVEN = """
import sys, time
sys.path.insert(0, {workloads!r})
import hostile

def factory(micro_batch, rank, slow, broken, how, where):
    if rank == slow:
        time.sleep(2)
    if where == "build" and rank == broken:
        hostile.misbehave(how, rank)
    return hostile.factory(micro_batch, rank, how if where == "wire" and rank == broken else "")
"""


@pytest.mark.parametrize(
    ("slow", "broken", "how", "where"),
    [
        (0, 1, "segfault", "wire"),
        (1, 1, "raise", "build"),
        pytest.param(1, 0, "segfault", "wire", marks=pytest.mark.slow),
        pytest.param(0, 0, "raise", "build", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_ahead_or_behind_breaks_in_its_own_phase(
    launcher: LocalLauncher, tmp_path: Path, slow: int, broken: int, how: str, where: str
) -> None:
    (tmp_path / "uneven.py").write_text(UNEVEN.format(workloads=str(WORKLOADS)))
    args = {"slow": slow, "broken": broken, "how": how, "where": where}
    model = PythonFactory(path="uneven:factory", args=args, folder=str(tmp_path))
    work = Workload(model=model, micro_batch=2, gradient_accumulation=2)
    # Building FSDP needs no collective, so that no rank waits for another.
    outcome = launcher.start(0).probe(request_for(make_setup(backend="fsdp"), workload=work), 60)
    assert outcome.reason is not None
    assert f"Rank {broken}" in outcome.reason
    assert f"phase {where!r}" in outcome.reason
    if how == "segfault":
        assert "Fatal Python error: Segmentation fault" in outcome.log
        assert "in misbehave" in outcome.log


def test_the_work_of_other_processes_is_told_from_that_of_the_launch(
    launch: Launch,
) -> None:
    assert launch.others_busy is None
    long = Measure(warm_up_steps=4, warm_up_cap=4, timed_steps=200, end_to_end_steps=1)
    everybody = OtherLoad([])  # takes the workers for strangers
    assert launch.probe(request_for(SETUP, measure=long), 60).kind == "ok"
    total, quiet = everybody.share(), launch.others_busy
    assert quiet is not None
    assert total - quiet > 0.3
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as stranger:
        try:
            assert launch.probe(request_for(SETUP, measure=long), 60).kind == "ok"
        finally:
            stranger.kill()
    assert launch.others_busy > 0.2


@pytest.mark.parametrize("how", ["sleep", "sleep-on-rank-1"])
def test_a_workload_that_sleeps_is_a_hang_and_the_log_shows_where(
    launcher: LocalLauncher, how: str
) -> None:
    launch = launcher.start(0)
    pids = worker_pids(launcher.folder / "000")
    deadline = 12  # long enough to build the engine on a busy machine
    outcome = launch.probe(request_for(SETUP, workload=hostile(how)), deadline)
    assert outcome.kind == "hang"
    assert outcome.reason is not None
    assert f"No answer within {deadline} s; the last phase was 'wire'" in outcome.reason
    assert "misbehave" in outcome.log
    assert gone(pids)


def test_a_rank_killed_from_outside_is_a_crash(launcher: LocalLauncher) -> None:
    launch = launcher.start(0)
    folder = launcher.folder / "000"

    def kill() -> None:
        time.sleep(1)
        os.kill(int((folder / "rank1.pid").read_text()), signal.SIGKILL)

    threading.Thread(target=kill).start()
    outcome = launch.probe(request_for(SETUP, workload=hostile("sleep")), 30)
    assert outcome.kind == "crash"
    assert outcome.reason is not None
    assert "Rank 1 died of SIGKILL" in outcome.reason


def test_ten_megabytes_of_output_do_no_harm_and_the_launch_stays_warm(launch: Launch) -> None:
    assert launch.probe(request_for(SETUP, workload=hostile("flood")), 60).kind == "ok"
    assert launch.probe(request_for(SETUP), 60).kind == "ok"


@pytest.mark.parametrize("how", ["nan", "nan-on-rank-1"])
def test_a_loss_that_is_not_finite_on_any_rank_is_unsafe_and_the_launch_goes_on(
    launch: Launch, how: str
) -> None:
    outcome = launch.probe(request_for(SETUP, workload=hostile(how)), 60)
    assert outcome.kind == "unsafe"
    assert launch.probe(request_for(SETUP), 60).kind == "ok"


def test_a_factory_that_returns_too_little_says_what_is_missing(launch: Launch) -> None:
    outcome = launch.probe(request_for(SETUP, workload=hostile(factory="incomplete")), 60)
    assert outcome.reason is not None
    assert "without batches, loss" in outcome.reason


def test_a_factory_without_batches_says_so(launch: Launch) -> None:
    outcome = launch.probe(request_for(SETUP, workload=hostile(factory="empty")), 60)
    assert outcome.reason is not None
    assert "are empty; give at least one" in outcome.reason


def test_a_configuration_that_deepspeed_refuses_is_invalid_and_the_launch_goes_on(
    launch: Launch,
) -> None:
    broken = request_for(SETUP, rendered='{"zero_optimization": {"stage": 7}}')
    outcome = launch.probe(broken, 60)
    assert outcome.kind == "invalid"
    assert launch.alive
    assert launch.probe(request_for(SETUP), 60).kind == "ok"


def test_workers_that_cannot_start_are_an_environment_error_with_the_log(
    launcher: LocalLauncher,
) -> None:
    command = (sys.executable, "-c", "raise SystemExit('no torchrun here')")
    with pytest.raises(LaunchFailedError, match="no torchrun here"):
        replace(launcher, commands=(command,)).start(0)


def test_stopping_a_launch_leaves_no_process(launcher: LocalLauncher) -> None:
    launch = launcher.start(0)
    pids = worker_pids(launcher.folder / "000")
    launch.stop()
    assert gone(pids)
