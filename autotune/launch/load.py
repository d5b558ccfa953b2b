"""How much of the machine other processes used, since their work shows in our times."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

import psutil

BUSY = ("user", "nice", "system", "irq", "softirq", "steal")  # Linux counts guests as user


class OtherLoad:
    """Measures, from its making on, the work of all processes but ours.

    Ours are this process and the trees below some others. Of those that end meanwhile the
    system tells the parent what they used, so nothing of ours is taken for somebody else's.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        """Starts measuring.

        Args:
            roots: Ids of the processes whose trees are ours; they may end at any time.
        """
        self._me = psutil.Process(os.getpid())
        self._roots = [root for pid in roots if (root := _process(pid)) is not None]
        self._started = time.monotonic()
        self._others = self._seconds()

    def share(self) -> float:
        """Share of the machine's cores that others used so far, between 0 and 1."""
        wall = time.monotonic() - self._started
        used = self._seconds() - self._others
        return min(1.0, max(0.0, used / (max(wall, 1e-9) * (psutil.cpu_count() or 1))))

    def _seconds(self) -> float:
        """CPU seconds of others since some fixed time."""
        ours = (self._me, *(process for root in self._roots for process in tree(root)))
        return system_seconds() - sum(map(process_seconds, ours))


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def tree(root: psutil.Process) -> Sequence[psutil.Process]:
    """The process with all its descendants; empty when it is gone."""
    try:
        return (root, *root.children(recursive=True))
    except psutil.NoSuchProcess:
        return ()


def process_seconds(process: psutil.Process) -> float:
    """CPU seconds of a process and of its ended descendants; 0 when it is gone."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def system_seconds() -> float:
    """CPU seconds that the machine has worked, over all cores."""
    times = psutil.cpu_times()
    return float(sum(getattr(times, name, 0.0) for name in BUSY))
