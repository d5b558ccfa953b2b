"""Backward with and without gradient communication, one after the other."""

from __future__ import annotations

import contextlib

from autotune.probe import memory
from autotune.probe.build import build_engine
from autotune.probe.control import Control
from autotune.probe.engine import Engine
from autotune.probe.line import Line
from autotune.probe.measure import Clock
from autotune.probe.workload import Rank, Task, build_task
from autotune.readings import Exposure
from autotune.request import ReadingRequest

WARM_UP = 4  # steps


def read_exposure(request: ReadingRequest, place: Rank, control: Control, line: Line) -> Exposure:
    """Times ``request.steps`` pairs; without unsynced times where the library always reduces.

    Raises:
        RefusedSetupError: The library refuses the text.
    """
    line.announce("exposure")
    task = build_task(request.workload, request.setup.micro_batch, place)
    engine = build_engine(task, request.setup, request.rendered)
    timer = Timer(engine, task, request.setup.gradient_accumulation, control, Clock(place.device))
    for _ in range(WARM_UP):
        timer.step()
    synced, unsynced = [], []
    for _ in range(request.steps):
        synced.append(timer.step())
        if engine.unsynced() is not None:
            unsynced.append(timer.backward(synced=False))
            timer.step()  # reduces and drops what the unsynced backward left behind
    engine.close()
    del engine, task, timer
    memory.release(place.device)
    return Exposure(
        synced_seconds=tuple(control.maximum(synced)),
        unsynced_seconds=tuple(control.maximum(unsynced)),
    )


class Timer:
    """Backward seconds of whole accumulation windows on this rank."""

    def __init__(
        self, engine: Engine, task: Task, accumulation: int, control: Control, clock: Clock
    ) -> None:
        self._engine = engine
        self._task = task
        self._accumulation = accumulation
        self._control = control
        self._clock = clock

    def step(self) -> float:
        """One optimizer step; the seconds of its backward passes."""
        seconds = self.backward(synced=True)
        self._engine.step()
        return seconds

    def backward(self, *, synced: bool) -> float:
        """The backward passes of one step, each after a barrier."""
        seconds = 0.0
        for _ in range(self._accumulation):
            quiet = None if synced else self._engine.unsynced()
            # The forward too: in it DDP decides whether the backward reduces.
            with quiet or contextlib.nullcontext():
                loss = self._engine.forward(next(self._task.batches))
                self._control.barrier()
                start = self._clock.now()
                self._engine.backward(loss)
                seconds += self._clock.now() - start
            if synced:
                self._engine.end_micro_batch()
        return seconds
