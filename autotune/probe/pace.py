"""Seconds of phases and of optimizer steps, and when a warm-up is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch

WINDOW = 4  # last steps of the warm-up that are looked at
STEADY_TOLERANCE = 0.02  # two halves of the warm-up window agree within 2 %


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one optimizer step on the slowest rank; loss of its last batch on this one."""

    forward: float
    backward: float
    step: float
    applied: bool
    loss: float

    @property
    def whole(self) -> float:
        """Seconds of all phases."""
        return self.forward + self.backward + self.step


class Stopwatch:
    """Wall time of each phase of a probe."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = {}
        self._announce = announce

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times the body and announces its start."""
        self._announce(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - start


class Clock:
    """Host time once the device is idle.

    On CUDA all streams are waited for: an event on the current stream would miss a reduction
    that is still running on the communication stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> float:
        """Seconds."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def steady(window: Sequence[float]) -> bool:
    """Whether the medians of the two halves of ``window`` differ by at most 2 %."""
    half = len(window) // 2
    if half == 0:
        return False
    early, late = median(window[:half]), median(window[half:])
    return abs(early - late) <= STEADY_TOLERANCE * late
