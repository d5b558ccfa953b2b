"""Real workers that misbehave: each costs one probe, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.launch import Launch, LaunchFailedError, LocalLauncher
from tests.build import make_setup
from tests.conftest import hostile, request_for

SETUP = make_setup()


def worker_pids(launch_folder: Path) -> list[int]:
    return [int(path.read_text()) for path in launch_folder.glob("rank*.pid")]


def gone(pids: list[int]) -> bool:
    return all(not psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize(
    ("how", "kind", "reason"),
    [
        ("raise", "crash", "ValueError: the workload is broken (hostile.py:"),
        ("raise-on-rank-1", "crash", "Rank 1, phase 'wire': ValueError: the workload is"),
        ("exit", "crash", "The workload called exit with 3"),
        ("exit-silently", "crash", "The workers ended in phase 'wire' without a word"),
        ("sigkill-on-rank-1", "crash", "Rank 1 died of SIGKILL in phase 'wire'"),
        ("segfault", "crash", "died of SIGSEGV in phase 'wire'"),
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


@pytest.mark.parametrize("how", ["sleep", "sleep-on-rank-1"])
def test_a_workload_that_sleeps_is_a_hang_and_the_log_shows_where(
    launcher: LocalLauncher, how: str
) -> None:
    launch = launcher.start(0)
    pids = worker_pids(launcher.folder / "000")
    outcome = launch.probe(request_for(SETUP, workload=hostile(how)), 4)
    assert outcome.kind == "hang"
    assert outcome.reason is not None
    assert "No answer within 4 s; the last phase was 'wire'" in outcome.reason
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
    assert "batches ended" in outcome.reason


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
