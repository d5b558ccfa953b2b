"""How search, race and confirmation share one budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.decide.race import LEAST_LAUNCHES
from autotune.outcome import Phase

# Of the whole budget, used up when the phase ends. What a phase leaves goes to the next. Readings
# of numerics come before the search and before the race: their share is of their own time.
SHARES: Mapping[Phase, float] = {"numerics": 0.25, "search": 0.4, "race": 0.65, "confirm": 1.0}
LEAST_SEARCH = 0.2  # even if no confirmation is left
SPARE_LAUNCHES = 1  # kept for the confirmation, because launches take more or less time
LEAST_ENTRIES = 3  # of a confirmation's block: one candidate, the baseline under two labels


@dataclass(frozen=True, slots=True)
class Amount:
    """Time and probes, spent or to be spent; infinite where nothing limits."""

    seconds: float = math.inf
    probes: float = math.inf

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.seconds - other.seconds, self.probes - other.probes)

    def __mul__(self, factor: float) -> Amount:
        return Amount(self.seconds * factor, self.probes * factor)

    def covers(self, other: Amount) -> bool:
        """Whether ``other`` fits in."""
        return self.seconds >= other.seconds and self.probes >= other.probes


@dataclass(frozen=True, slots=True)
class Costs:
    """What this machine takes for this workload.

    Attributes:
        launch_seconds: To start and warm a launch.
        probe_seconds: One probe.
    """

    launch_seconds: float
    probe_seconds: float

    def block(self, entries: int) -> Amount:
        """One block of ``entries`` probes in a fresh launch."""
        return Amount(self.launch_seconds + entries * self.probe_seconds, entries)


def allowance(
    phase: Phase, budget: Amount, costs: Costs, *, surveyed_seconds: float = 0.0
) -> Amount:
    """What may be spent, counted from the sweep's start, when ``phase`` ends.

    The search may take 40 % of the budget, the race up to 65 %, the confirmation the rest.
    Search and race have to leave a smallest confirmation, of six launches (and one to spare) with
    one candidate and the baseline under two labels; but 20 % are the search's own, beside what
    the readings before it have taken.
    """
    share = budget * SHARES[phase]
    if phase == "confirm":
        return share
    rest = budget - costs.block(LEAST_ENTRIES) * (LEAST_LAUNCHES + SPARE_LAUNCHES)
    limit = Amount(min(share.seconds, rest.seconds), min(share.probes, rest.probes))
    if phase == "race":
        return limit
    least = budget * LEAST_SEARCH - Amount(-surveyed_seconds, 0)
    return Amount(max(least.seconds, limit.seconds), max(least.probes, limit.probes))


def blocks_in(left: Amount, costs: Costs, entries: int) -> int:
    """How many blocks of ``entries`` probes fit; a very large number without a limit."""
    block = costs.block(entries)
    each = [left.seconds / max(block.seconds, 1e-9), left.probes / block.probes]
    return max(0, int(min(*each, 1e6)))
