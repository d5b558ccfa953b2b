"""What a sweep is expected to cost, phase by phase, as ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.decide.budget import LEAST_ENTRIES, SHARES, Amount, Costs, allowance
from autotune.decide.confirm import MOST_LAUNCHES, RIVALS
from autotune.decide.race import LEAST_LAUNCHES, Rules
from autotune.decide.screening import MOST_ENTRANTS, MOST_QUALIFIERS
from autotune.outcome import Phase

# Two launches of one setup differ by 15 % on a busy machine, and setups differ from the baseline.
FASTER, SLOWER = 0.8, 1.3
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Range:
    """Lowest and highest expected cost of a phase."""

    launches: tuple[int, int]
    probes: tuple[int, int]
    minutes: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "launches": list(self.launches),
            "probes": list(self.probes),
            "minutes": list(self.minutes),
        }


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings before the search; those at the gates follow from the setups.

    Attributes:
        exposures: Of communication.
        alone: Those of them that need a launch of one rank.
        samples: Of gradients.
        traces: Of fp16 training.
        gates: Whether setups at the gates are read, too; a script's own probes tell.
    """

    exposures: int = 0
    alone: int = 0
    samples: int = 0
    traces: int = 0
    gates: bool = True

    @property
    def probes(self) -> float:
        """What they take, in probes: by the optimizer steps in each, at the default settings."""
        return 2 * (self.exposures + self.alone) + 0.5 * self.samples + 5 * self.traces

    @property
    def launches(self) -> int:
        """What they take in launches."""
        return self.alone + bool(self.exposures + self.samples + self.traces)


GATE, GROUND = 2.5, 8  # a setup at the gates, and the fp32 runs they share, in probes


def forecast(
    setups: int,
    costs: Costs,
    budget: Amount,
    *,
    baseline_every: int,
    probes_per_launch: int,
    readings: Readings,
) -> Mapping[Phase, Range]:
    """Expected cost of each phase, cut to its share of the budget.

    Args:
        setups: Valid setups beside the baseline.
        costs: Of a launch and of a probe of the baseline.
        budget: For all phases.
        baseline_every: Probes between two baselines of the search.
        probes_per_launch: Probes after which the search takes a fresh launch.
        readings: Before the search.
    """
    launches = math.ceil(setups / probes_per_launch)
    probes = _with_baselines(setups, baseline_every) + max(0, launches - 1)
    launches += bool(readings.launches)  # the first start of a run is charged to the search
    entrants = min(MOST_ENTRANTS, setups)
    looks = Rules().looks if entrants > 1 else (0, 0)
    few, many = min(2, entrants) + 1, entrants + 1
    most = MOST_LAUNCHES if setups else 0
    least = LEAST_LAUNCHES if setups else 0
    widest = LEAST_ENTRIES + min(RIVALS, max(0, setups - 1))
    more = (1, _with_baselines(min(MOST_QUALIFIERS, setups), baseline_every))
    more = more if setups > MOST_ENTRANTS else (0, 0)
    longest = (looks[-1] + more[0], looks[-1] * many + more[1])
    raw: Mapping[Phase, Range] = {
        "search": _range((launches, probes), (launches, probes), costs),
        "race": _range((looks[0], looks[0] * few), longest, costs),
        "confirm": _range((least, least * LEAST_ENTRIES), (most, most * widest), costs),
    }
    cut = {phase: _cut(phase, item, budget, costs) for phase, item in raw.items()}
    return {"numerics": _numerics(setups, costs, budget, readings), **cut}


def _numerics(setups: int, costs: Costs, budget: Amount, readings: Readings) -> Range:
    """Readings count as no probes; those at the gates end at their share of the time."""
    gates = int(bool(setups) and readings.gates)
    few, many = (
        readings.probes + gates * (GROUND + number * GATE) for number in (2, _most(setups))
    )
    launches = max(0, readings.launches - 1) + gates
    most = budget.seconds * SHARES["numerics"] / 60
    low = (launches * costs.launch_seconds + few * costs.probe_seconds) / 60 * FASTER
    high = (launches * costs.launch_seconds + many * costs.probe_seconds) / 60 * SLOWER
    return Range((launches, launches), (0, 0), (min(low, most), min(high, most)))


def _most(setups: int) -> int:
    """Setups at the gates: those that may enter the race, and the baseline."""
    return 1 + min(MOST_ENTRANTS, setups)


def _with_baselines(setups: int, baseline_every: int) -> int:
    """Probes of a launch that begins and ends with a baseline."""
    return setups + math.ceil(setups / baseline_every) + 1 if setups else 0


def _range(low: tuple[int, int], high: tuple[int, int], costs: Costs) -> Range:
    def minutes(launches: int, probes: int) -> float:
        return (launches * costs.launch_seconds + probes * costs.probe_seconds) / 60

    return Range(
        launches=(low[0], high[0]),
        probes=(low[1], high[1]),
        minutes=(minutes(*low) * FASTER, minutes(*high) * SLOWER),
    )


def _cut(phase: Phase, item: Range, budget: Amount, costs: Costs) -> Range:
    """No phase can take more than its allowance, and what earlier ones are sure to need."""
    limit = allowance(phase, budget, costs)
    seconds, probes = max(0.0, limit.seconds), max(0.0, limit.probes)
    share = min(
        1.0,
        seconds / 60 / item.minutes[1] if item.minutes[1] else 1.0,
        probes / item.probes[1] if item.probes[1] else 1.0,
    )
    return Range(
        launches=_shrunk(item.launches, math.ceil(item.launches[1] * share - ROUNDING)),
        probes=_shrunk(item.probes, math.floor(item.probes[1] * share + ROUNDING)),
        minutes=(min(item.minutes[0], item.minutes[1] * share), item.minutes[1] * share),
    )


def _shrunk(low_high: tuple[int, int], high: int) -> tuple[int, int]:
    return min(low_high[0], high), high
