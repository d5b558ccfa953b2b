"""Ending processes by id, never by name."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

GRACE_SECONDS = 3
DUMP_SECONDS = 0.5


def end_group(agent: subprocess.Popen[bytes]) -> None:
    """Ends torchrun and its workers: politely, then for good.

    torchrun starts each worker in a session of its own, so its process group does not hold
    them; they are found as its descendants while it lives.
    """
    if agent.poll() is not None:
        return
    workers = _descendants(agent.pid)
    _signal_group(agent.pid, signal.SIGTERM)
    _, alive = psutil.wait_procs(workers, timeout=GRACE_SECONDS)
    for worker in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        agent.wait(GRACE_SECONDS)
    _signal_group(agent.pid, signal.SIGKILL)
    agent.wait()


def _descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def dump_stacks(folder: Path) -> None:
    """Asks each worker for its Python stack, which goes to its stderr log."""
    for note in folder.glob("rank*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(note.read_text()), signal.SIGUSR1)
    time.sleep(DUMP_SECONDS)
