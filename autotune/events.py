"""What happens during a sweep, for whoever wants to show it."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.outcome import Probe
from autotune.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlanned:
    """The size of what follows: valid setups, those already measured, and the budget."""

    setups: int
    measured: int
    probes: int | None
    minutes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStarting:
    """Workers are being started."""

    launch: int
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReady:
    """Workers are warm; ``seconds`` from their start to the first request."""

    launch: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnded:
    """Workers are gone, and why."""

    launch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStarted:
    """A probe was sent to the workers."""

    number: int
    setup: Setup
    baseline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFinished:
    """A probe ended; ``ratio`` is its backward throughput over the neighbouring baseline's."""

    probe: Probe
    ratio: float | None


Event = SweepPlanned | LaunchStarting | LaunchReady | LaunchEnded | ProbeStarted | ProbeFinished
