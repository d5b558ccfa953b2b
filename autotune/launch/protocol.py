"""What a sweep asks of workers, wherever they run."""

from __future__ import annotations

from typing import Protocol

from autotune.launch.local import Judge
from autotune.outcome import Outcome
from autotune.readings import Reading
from autotune.request import ProbeRequest, ReadingRequest


class Launch(Protocol):
    """One group of warm workers that serves many probes.

    Attributes:
        alive: False once the workers are lost.
        others_busy: Share of the cores that other processes used during the last probe.
    """

    alive: bool
    others_busy: float | None

    def probe(
        self, request: ProbeRequest, deadline_seconds: float, judge: Judge | None = None
    ) -> Outcome:
        """Runs one probe; ``judge`` may stop it after each burst, with the reason."""

    def read(self, request: ReadingRequest, deadline_seconds: float) -> Reading | Outcome:
        """Takes one reading; an outcome that says why where there is none."""

    def stop(self) -> None:
        """Lets the workers leave in order."""

    def kill(self) -> None:
        """Ends the workers now."""


class Launcher(Protocol):
    """Starts launches."""

    @property
    def ranks(self) -> int:
        """Workers in a launch."""

    @property
    def fresh(self) -> bool:
        """Whether every probe starts processes of its own, so that no launch has to be warmed."""

    def start(self, number: int, *, alone: bool = False) -> Launch:
        """Starts launch ``number``, of one rank if ``alone``, and waits until it is ready."""

    def clock(self) -> float:
        """Seconds since some fixed moment, by the clock that the budget is kept with."""
