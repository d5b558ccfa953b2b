"""A made-up machine whose true speeds are known, and the scenarios that are played on it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotune.launch.replay import Answer
from autotune.outcome import Outcome
from autotune.setup import Setup
from tests.build import make_measurement, make_setup

PROBE_SECONDS = 2.0
STEPS = 2  # timed steps of an answer; they are equal, noise within a probe is not simulated
END_TO_END_SHARE = 0.5  # of a log gain in the backward that the whole step keeps
SPIKE, SPIKE_SPREAD = 0.05, 0.03  # log slow-down of a disturbed probe

Gains = Callable[[random.Random, int], list[float]]


@dataclass
class World:
    """Answers probes as `autotune.launch.replay.Source`; all noise is of log speeds.

    Attributes:
        gains: True log speed of every setup; the baseline's is 0.
        launch_noise: Standard deviation of the level that a launch gives to all its probes.
        probe_noise: Standard deviation of each probe; this is what a paired ratio keeps.
        drift: Log speed that a launch gains with every probe that it serves.
        spikes: Share of the probes that something else slows down.
    """

    gains: Mapping[Setup, float]
    launch_noise: float
    probe_noise: float
    drift: float = 0.0
    spikes: float = 0.0
    launch_seconds: float = 10.0
    _served: int = field(default=0, repr=False)

    def level(self, chance: random.Random) -> float:
        """The level of a fresh launch."""
        self._served = 0
        return chance.gauss(0.0, self.launch_noise)

    def answer(self, setup: Setup, level: float, chance: random.Random) -> Answer:
        """One ``ok`` probe; backward and end-to-end share a spike, not the probe noise."""
        shared = level + self.drift * self._served - self._spike(chance)
        self._served += 1
        backward = self.gains[setup] + shared + chance.gauss(0.0, self.probe_noise)
        whole = END_TO_END_SHARE * self.gains[setup] + shared + chance.gauss(0.0, self.probe_noise)
        measured = make_measurement(math.exp(-backward), end_to_end=math.exp(-whole), steps=STEPS)
        return Answer(Outcome(kind="ok", measurement=measured), PROBE_SECONDS)

    def _spike(self, chance: random.Random) -> float:
        if chance.random() >= self.spikes:
            return 0.0
        return abs(chance.gauss(SPIKE, SPIKE_SPREAD))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of world.

    Attributes:
        name: For the table.
        setups: Their number, the baseline included.
        gains: Draws the true log gains of all setups but the baseline.
        launch_noise: As in `World`.
        probe_noise: As in `World`.
        drift: As in `World`.
        spikes: As in `World`.
    """

    name: str
    setups: int
    gains: Gains
    launch_noise: float = 0.02
    probe_noise: float = 0.02
    drift: float = 0.0
    spikes: float = 0.0

    def world(self, seed: int) -> tuple[Setup, World]:
        """The baseline, and a world with gains drawn by ``seed``."""
        baseline, *others = (make_setup(bucket_bytes=1_000 + i) for i in range(self.setups))
        drawn = self.gains(random.Random(f"gains {seed}"), len(others))
        return baseline, World(
            {baseline: 0.0, **dict(zip(others, drawn, strict=True))},
            launch_noise=self.launch_noise,
            probe_noise=self.probe_noise,
            drift=self.drift,
            spikes=self.spikes,
        )


def equal(chance: random.Random, count: int) -> list[float]:
    """Nothing is better than the baseline."""
    return [0.0] * count


def one_at(ratio: float) -> Gains:
    """One setup, at a random place, is faster; the others equal the baseline."""

    def draw(chance: random.Random, count: int) -> list[float]:
        gains = [0.0] * count
        gains[chance.randrange(count)] = math.log(ratio)
        return gains

    return draw


def normal(spread: float) -> Gains:
    """Log gains are normal around the baseline."""

    def draw(chance: random.Random, count: int) -> list[float]:
        return [chance.gauss(0.0, spread) for _ in range(count)]

    return draw


SCENARIOS = (
    Scenario(name="all equal, 20", setups=20, gains=equal),
    Scenario(name="all equal, 20, spikes, drift", setups=20, gains=equal, spikes=0.03, drift=1e-3),
    Scenario(name="one 3 % faster of 2", setups=2, gains=one_at(1.03)),
    Scenario(name="one 3 % faster of 8", setups=8, gains=one_at(1.03)),
    Scenario(name="one 3 % faster of 20", setups=20, gains=one_at(1.03)),
    Scenario(name="normal 3 % of 150", setups=150, gains=normal(0.03)),
    Scenario(name="normal 10 % of 150", setups=150, gains=normal(0.10)),
)
