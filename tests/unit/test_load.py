"""Real processes that keep the machine busy."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from autotune.launch.load import OtherLoad, process_seconds, tree

WINDOW_SECONDS = 1.0
TOLERANCE = 0.1  # of a core: clock ticks of 10 ms, and the moments between two readings
# It ends by itself, whatever happens to the test.
SPIN = "import time; end = time.time() + 20\nwhile time.time() < end: pass"
# One child after the other, each ended and waited for.
PARENT = f"""
import subprocess, sys
while True:
    try:
        subprocess.run([sys.executable, "-c", {SPIN!r}], timeout=0.2)
    except subprocess.TimeoutExpired:
        pass
"""


@pytest.fixture(params=[SPIN, PARENT], ids=["itself", "by-children-that-end"])
def busy(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", request.param]) as process:
        yield process
        for item in tree(psutil.Process(process.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                item.kill()


def cores_of(process: subprocess.Popen[bytes]) -> float:
    """Cores that the process and its ended children take."""
    seconds = process_seconds(psutil.Process(process.pid))
    started = time.monotonic()
    time.sleep(WINDOW_SECONDS)
    later = process_seconds(psutil.Process(process.pid))
    return (later - seconds) / (time.monotonic() - started)


def test_the_work_of_another_process_counts_and_that_of_our_own_tree_does_not(
    busy: subprocess.Popen[bytes],
) -> None:
    # Both look at the same moments, so whatever else runs here is in both.
    stranger, ours = OtherLoad([]), OtherLoad([busy.pid])
    cores = cores_of(busy)
    difference = (stranger.share() - ours.share()) * (psutil.cpu_count() or 1)
    assert cores > 3 * TOLERANCE
    assert difference > cores - 2.5 * TOLERANCE


def test_our_own_work_does_not_count() -> None:
    meter = OtherLoad([])
    us = psutil.Process()
    before, started = process_seconds(us), time.monotonic()
    while time.monotonic() < started + WINDOW_SECONDS:
        pass
    ours = (process_seconds(us) - before) / (time.monotonic() - started)
    cores = psutil.cpu_count() or 1
    assert meter.share() <= 1 - (ours - TOLERANCE) / cores


def test_processes_that_are_gone_are_no_trouble() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        meter = OtherLoad([ended.pid])
        ended.wait()
    assert 0 <= meter.share() <= 1
    assert 0 <= OtherLoad([ended.pid]).share() <= 1
