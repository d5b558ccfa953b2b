"""Probes that the controller stops early, on two real ranks."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from autotune.launch import Burst, Launch, LocalLauncher
from autotune.outcome import Measurement, Outcome
from autotune.request import Measure, ProbeRequest
from autotune.setup import Setup
from tests.build import make_setup
from tests.conftest import request_for

ROOT = Path(__file__).parents[2]
SETUPS = [make_setup(zero_stage=2), make_setup(backend="fsdp")]
BURSTS = Measure(warm_up_steps=3, warm_up_cap=3, timed_steps=6, end_to_end_steps=2, burst_steps=2)
both = pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.backend)


class Stopper:
    """A judge that stops at one burst, or never, and remembers what it was asked."""

    def __init__(self, stop_at: int | None = None) -> None:
        self._stop_at = stop_at
        self.asked: list[Burst] = []

    def __call__(self, burst: Burst) -> str | None:
        self.asked.append(burst)
        return "too slow" if burst.index == self._stop_at else None


def measured(outcome: Outcome) -> Measurement:
    assert outcome.kind == "ok", (outcome.reason, outcome.log)
    assert outcome.measurement is not None
    return outcome.measurement


def bursts(setup: Setup) -> ProbeRequest:
    return request_for(setup, measure=BURSTS)


@both
def test_a_stopped_probe_is_pruned_and_the_launch_serves_the_next_one(
    warm: Launch, setup: Setup
) -> None:
    judge = Stopper(stop_at=1)
    outcome = warm.probe(bursts(setup), 60, judge)
    assert (outcome.kind, outcome.reason, outcome.measurement) == ("pruned", "too slow", None)
    assert [(burst.index, len(burst.backward_seconds)) for burst in judge.asked] == [(0, 3), (1, 2)]
    backward = [seconds for burst in judge.asked for seconds in burst.backward_seconds]
    assert min(backward) > 0
    left = 4 + 2  # timed and end-to-end steps
    assert outcome.saved_seconds > left * min(backward)
    steps_ran = 3 + 2
    assert outcome.saved_seconds < left / steps_ran * (
        outcome.seconds["warm_up"] + outcome.seconds["timed"]
    )
    assert "end_to_end" not in outcome.seconds
    assert "clean_up" in outcome.seconds
    assert outcome.resident_bytes > 0
    following = warm.probe(bursts(setup), 60)
    assert len(measured(following).backward_seconds) == 6
    assert following.saved_seconds == 0


def test_a_probe_can_be_stopped_right_after_the_warm_up(warm: Launch) -> None:
    outcome = warm.probe(bursts(SETUPS[0]), 60, Stopper(stop_at=0))
    assert outcome.kind == "pruned"
    assert "timed" not in outcome.seconds
    assert outcome.saved_seconds > 0


@both
def test_a_judge_that_lets_it_go_on_changes_no_count_of_steps(warm: Launch, setup: Setup) -> None:
    judge = Stopper()
    with_bursts = measured(warm.probe(bursts(setup), 60, judge))
    assert [burst.index for burst in judge.asked] == [0, 1, 2]  # nobody is asked after the last
    assert judge.asked[1].backward_seconds == with_bursts.backward_seconds[:2]
    assert judge.asked[2].backward_seconds == with_bursts.backward_seconds[2:4]
    plain = Measure(warm_up_steps=3, warm_up_cap=3, timed_steps=6, end_to_end_steps=2)
    never = Stopper(stop_at=0)
    without = measured(warm.probe(request_for(setup, measure=plain), 60, never))
    assert never.asked == []
    for found in (with_bursts, without):
        assert len(found.backward_seconds) == 6
        assert found.end_to_end_steps == 2
        assert found.warm_up_steps == 1 + 3
    assert with_bursts.losses == pytest.approx(without.losses, rel=1e-5)


def test_a_wire_that_is_not_as_asked_is_inert_before_anybody_judges_its_speed(
    warm: Launch,
) -> None:
    asked = make_setup(backend="fsdp", precision="bf16", grad_comm_dtype="bf16")
    liar = request_for(asked).rendered.replace(
        "mp_policy=policy()", "mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)"
    )
    judge = Stopper(stop_at=0)
    outcome = warm.probe(request_for(asked, rendered=liar, measure=BURSTS), 60, judge)
    assert outcome.kind == "inert"
    assert judge.asked == []


def test_the_deadline_counts_on_while_the_judge_thinks(launcher: LocalLauncher) -> None:
    launch = launcher.start(0)

    def slow(burst: Burst) -> None:
        time.sleep(6)

    outcome = launch.probe(bursts(SETUPS[0]), 5, slow)
    assert outcome.kind == "hang"
    assert not launch.alive


def test_a_launch_stopped_while_its_workers_wait_for_the_judge_ends_in_order(
    launcher: LocalLauncher,
) -> None:
    launch = launcher.start(0)
    folder = launcher.folder / "000"
    pids = [int(path.read_text()) for path in folder.glob("rank*.pid")]

    def stop(burst: Burst) -> None:
        launch.stop()

    launch.probe(bursts(SETUPS[0]), 60, stop)
    assert not launch.alive
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not list(folder.glob("*.failure.json"))


CONTROLLER = """
import sys, time
from pathlib import Path
from autotune.launch import LocalLauncher, describe_machine
from autotune.launch.describe import worker_environment
from tests.integration.test_prune import SETUPS, bursts

folder = Path(sys.argv[1])
launch = LocalLauncher(2, worker_environment(describe_machine(), 2), folder).start(0)

def judge(burst):
    print("waiting", flush=True)
    time.sleep(100)

launch.probe(bursts(SETUPS[0]), 60, judge)
"""


def test_workers_that_wait_for_the_answer_of_a_killed_controller_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONTROLLER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"waiting\n"
        controller.kill()
    pids = [int(path.read_text()) for path in (tmp_path / "000").glob("rank*.pid")]
    assert len(pids) == 2
    deadline = time.monotonic() + 30
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)
