"""How far a sweep has got, and how long its phase can still take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.events import BlockStarted, Event, PhaseStarted, ProbeFinished, SweepPlanned
from autotune.outcome import Phase

BASELINES = 1.25  # probes of the search for each setup, since every fifth one is the baseline


@dataclass(slots=True)
class Pace:
    """Counts events. Times are seconds of one clock, given from outside.

    Attributes:
        started: When the sweep began.
        phase: What runs now; None before the first phase.
        done: Probes of this session.
    """

    started: float
    phase: Phase | None = None
    done: int = 0
    _plan: SweepPlanned | None = None
    _phase_started: float = 0.0
    _phase_done: int = 0
    _launches: int | None = None
    _first_block: int | None = None
    _block: int = 0
    _block_started: float = 0.0
    _reading: float = 0.0

    def take(self, event: Event, now: float) -> None:
        """Takes an event into account."""
        match event:
            case SweepPlanned():
                self._plan = event
            case PhaseStarted():
                if self.phase == "numerics":
                    self._reading += now - self._phase_started
                self.phase, self._phase_started, self._phase_done = event.phase, now, 0
                self._launches, self._first_block = event.launches, None
            case BlockStarted():
                self._block, self._block_started = event.number, now
                if self._first_block is None:
                    self._first_block = event.number
            case ProbeFinished():
                self.done += 1
                self._phase_done += 1
            case _:
                pass

    def seconds_left(self, now: float) -> float | None:
        """At most how long the phase still takes, at the pace so far; None while unknown."""
        bounds = [*self._by_setups(now), *self._by_blocks(now), *self._by_budget(now)]
        return max(0.0, min(bounds)) if bounds else None

    def _by_setups(self, now: float) -> Iterator[float]:
        """The search ends when every setup has been probed."""
        if self.phase == "search" and self._plan is not None and self._phase_done:
            setups = self._plan.setups - self._plan.measured
            spent = now - self._phase_started
            yield setups * BASELINES * spent / self._phase_done - spent

    def _by_blocks(self, now: float) -> Iterator[float]:
        """Race and confirmation end after so many launches, each with one block."""
        if self._launches is None or self._first_block is None:
            return
        done = self._block - self._first_block
        if done:
            pace = (self._block_started - self._phase_started) / done
            yield pace * (self._launches - self._block) - (now - self._block_started)

    def _by_budget(self, now: float) -> Iterator[float]:
        """The budget ends every phase."""
        if self._plan is None:
            return
        spent = now - self.started
        if self._plan.minutes is not None:
            yield self._plan.minutes * 60 - spent
        # Readings are no probes: they neither use up their number nor tell their pace.
        if self._plan.probes is not None and self.done and self.phase != "numerics":
            pace = (spent - self._reading) / self.done
            yield (self._plan.probes - self.done) * pace
