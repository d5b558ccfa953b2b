"""A launcher that answers from records instead of workers, by a clock of its own."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

from autotune.decide.screening import baseline_logs
from autotune.launch.local import Judge
from autotune.outcome import Measurement, Outcome, Probe
from autotune.readings import Reading
from autotune.request import ProbeRequest, ReadingRequest
from autotune.setup import Setup


@dataclass(frozen=True, slots=True)
class Answer:
    """An outcome, and the seconds that it would have taken."""

    outcome: Outcome
    seconds: float


class Source(Protocol):
    """Where a replay's answers come from."""

    launch_seconds: float

    def level(self, chance: random.Random) -> float:
        """Log speed of a fresh launch; what differs between launches for all setups alike."""

    def answer(self, setup: Setup, level: float, chance: random.Random) -> Answer:
        """One probe of ``setup`` in a launch of ``level``."""


class ReplayLauncher:
    """Starts launches that draw their answers from a source; seeded, so a replay repeats."""

    def __init__(self, source: Source, *, ranks: int = 1, seed: int = 0) -> None:
        self.ranks = ranks
        self.fresh = False
        self._source = source
        self._seed = seed
        self._seconds = 0.0

    def clock(self) -> float:
        """Seconds that the replayed launches and probes would have taken so far."""
        return self._seconds

    def pass_time(self, seconds: float) -> None:
        """Moves the clock."""
        self._seconds += seconds

    def start(self, number: int, *, alone: bool = False) -> ReplayLaunch:
        """A launch; the same number gives the same answers again."""
        self.pass_time(self._source.launch_seconds)
        return ReplayLaunch(self, self._source, random.Random(f"{self._seed} {number}"))


class ReplayLaunch:
    """Serves draws from the records."""

    def __init__(self, launcher: ReplayLauncher, source: Source, chance: random.Random) -> None:
        self.alive = True
        self.others_busy: float | None = None
        self._launcher = launcher
        self._source = source
        self._chance = chance
        self._level = source.level(chance)

    def probe(
        self, request: ProbeRequest, deadline_seconds: float, judge: Judge | None = None
    ) -> Outcome:
        """A drawn outcome; a recorded loss of the workers loses this launch as well."""
        answer = self._source.answer(request.setup, self._level, self._chance)
        self._launcher.pass_time(answer.seconds)
        self.alive = answer.outcome.kind not in ("crash", "hang", "oom")
        return answer.outcome

    def read(self, request: ReadingRequest, deadline_seconds: float) -> Reading | Outcome:
        """No reading: a replay begins with all findings of the run, and takes no others."""
        return Outcome(kind="invalid", reason="The run that is replayed has no such reading.")

    def stop(self) -> None:
        """Ends the launch."""
        self.alive = False

    def kill(self) -> None:
        """Ends the launch."""
        self.alive = False


@dataclass(frozen=True, slots=True)
class Draw:
    """A recorded probe, and the log speed of the launch that served it."""

    probe: Probe
    level: float


class Recorded:
    """The records of a run, resampled.

    Speeds are taken relative to the launch that measured them (the mean log backward
    throughput of its baseline probes) and set on the level of a launch drawn at random, so a
    replayed launch shifts all its probes alike, as a real one does.
    """

    def __init__(self, probes: Sequence[Probe], launch_seconds: float) -> None:
        self.launch_seconds = launch_seconds
        levels = {launch: fmean(logs) for launch, logs in baseline_logs(probes).items()}
        self._levels = list(levels.values()) or [0.0]
        overall = fmean(self._levels)
        self._draws: dict[Setup, list[Draw]] = {}
        for probe in probes:
            draw = Draw(probe, levels.get(probe.launch, overall))
            self._draws.setdefault(probe.setup, []).append(draw)

    def level(self, chance: random.Random) -> float:
        """The level of a recorded launch."""
        return chance.choice(self._levels)

    def answer(self, setup: Setup, level: float, chance: random.Random) -> Answer:
        """A recorded probe of the setup, moved to ``level``."""
        draws = self._draws.get(setup)
        if draws is None:
            reason = "The run that is replayed has no record of this setup."
            return Answer(Outcome(kind="invalid", reason=reason), 0.0)
        drawn = chance.choice(draws)
        outcome = drawn.probe.outcome
        if outcome.measurement is not None:
            factor = math.exp(drawn.level - level)
            outcome = replace(outcome, measurement=_scaled(outcome.measurement, factor))
        return Answer(outcome, drawn.probe.wall_seconds)


def _scaled(measurement: Measurement, factor: float) -> Measurement:
    """The measurement with every time multiplied by ``factor``."""
    return replace(
        measurement,
        forward_seconds=tuple(value * factor for value in measurement.forward_seconds),
        backward_seconds=tuple(value * factor for value in measurement.backward_seconds),
        step_seconds=tuple(value * factor for value in measurement.step_seconds),
        end_to_end_seconds=measurement.end_to_end_seconds * factor,
    )
