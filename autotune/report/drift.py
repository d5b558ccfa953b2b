"""Whether the baseline's own speed has a trend, within a launch or from launch to launch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, fmean, median

from autotune.decide.screening import baseline_logs
from autotune.outcome import Probe

LEAST_VALUES = 6  # shorter series cannot reach the level, and would only dilute it
LEVEL = 0.01  # over all series that are tested
FLOORS = 2  # noise floors that a trend must move the baseline by to matter


@dataclass(frozen=True, slots=True)
class Drift:
    """A trend of the baseline's backward throughput.

    Attributes:
        log_change: From the first to the last value, by the median slope of all pairs.
        p: Of the hypothesis that there is no trend.
        launches: First and last launch it spans; the same one twice for a trend within it.
        values: Number of values behind it.
    """

    log_change: float
    p: float
    launches: tuple[int, int]
    values: int


def find_drift(
    probes: Iterable[Probe], noise_floor: float | None, least_change: float
) -> Drift | None:
    """The largest trend that is neither chance nor too small to matter; None without one.

    Args:
        probes: Every probe of the run.
        noise_floor: Standard deviation of the log ratio of two probes of a launch.
        least_change: Log change below which no trend matters.
    """
    launches = baseline_logs(probes)
    means = {launch: fmean(values) for launch, values in launches.items()}
    series = [(list(means.values()), (min(means, default=0), max(means, default=0)))]
    series += [(values, (launch, launch)) for launch, values in launches.items()]
    fitted = [_fit(values, span) for values, span in series if len(values) >= LEAST_VALUES]
    least = max(FLOORS * (noise_floor or 0.0), least_change)
    drifts = [
        drift for drift in fitted if drift.p < LEVEL / len(fitted) and abs(drift.log_change) > least
    ]
    return max(drifts, key=lambda drift: abs(drift.log_change), default=None)


def _fit(values: Sequence[float], launches: tuple[int, int]) -> Drift:
    """The median slope and the Mann-Kendall test of it, which one odd value moves little.

    Mann, H. B. (1945), Nonparametric tests against trend. Econometrica 13, 245-259.
    """
    count = len(values)
    pairs = list(combinations(enumerate(values), 2))
    slope = median((late - early) / (after - before) for (before, early), (after, late) in pairs)
    score = sum((late > early) - (late < early) for (_, early), (_, late) in pairs)
    spread = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    p = 2 * NormalDist().cdf(-max(0, abs(score) - 1) / spread)
    return Drift(slope * (count - 1), p, launches, count)
