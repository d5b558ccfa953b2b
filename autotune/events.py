"""What happens during a sweep, for whoever wants to show it."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.outcome import Phase, Probe
from autotune.request import Ask
from autotune.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlanned:
    """The size of what follows: valid setups, those already measured, and the budget."""

    setups: int
    measured: int
    probes: int | None
    minutes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted:
    """A phase begins.

    Attributes:
        phase: Which.
        setups: Setups that it compares with the baseline.
        launches: Launches that it takes at most; None for the search and for numerics.
        qualifying: Whether the race begins with a second probe of too many setups.
        examining: Whether setups, the baseline included, go through the gates; else ``numerics``
            takes the readings that the search needs, ``setups`` of them.
    """

    phase: Phase
    setups: int
    launches: int | None
    qualifying: bool = False
    examining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStarted:
    """A block begins: one probe of every entry, in a launch of its own."""

    phase: Phase
    number: int
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupLeft:
    """A setup left the race or the confirmation."""

    phase: Phase
    setup: Setup
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCut:
    """Something was left out for want of budget."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingStarted:
    """A reading of numerics or communication was asked of the workers."""

    ask: Ask
    setup: Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a reading came to.

    Attributes:
        text: One sentence.
        refused: The setup that it refuses, if it does.
    """

    text: str
    refused: Setup | None = None


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


Event = (
    SweepPlanned
    | PhaseStarted
    | BlockStarted
    | SetupLeft
    | BudgetCut
    | ReadingStarted
    | Judged
    | LaunchStarting
    | LaunchReady
    | LaunchEnded
    | ProbeStarted
    | ProbeFinished
)
