"""Statistics on log ratios, one value a launch. scipy has the distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy import optimize, stats

# Spread of a setup against the mean of two baseline probes, over that against one.
AGAINST_TWO = math.sqrt(3) / 2
NO_SPREAD = 1e-9  # log ratio; what is closer differs by rounding, and no t statistic exists
POWER = 0.9  # chance to resolve a difference that is really there


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean log ratio with its two-sided confidence interval.

    Attributes:
        mean: Mean of the log ratios.
        low: Lower end of the interval, log ratio.
        high: Upper end.
        launches: Number of ratios, one a launch.
        confidence: Nominal coverage of the interval.
    """

    mean: float
    low: float
    high: float
    launches: int
    confidence: float

    @property
    def ratio(self) -> float:
        """The mean as a ratio."""
        return math.exp(self.mean)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval as ratios."""
        return math.exp(self.low), math.exp(self.high)

    def excludes(self, log_ratio: float) -> bool:
        """Whether the interval lies on one side of ``log_ratio``."""
        return not self.low <= log_ratio <= self.high


def estimate(log_ratios: Sequence[float], confidence: float) -> Estimate:
    """Student's t interval on the mean of ``log_ratios``, shape (launches,), at least 2.

    At these sizes t covers better than the bootstrap: .92 against .84 with 8 pairs and rare
    spikes, nominal .95.
    """
    assert len(log_ratios) > 1
    mean = fmean(log_ratios)
    if constant(log_ratios):
        return Estimate(mean, mean, mean, len(log_ratios), confidence)
    found = stats.ttest_1samp(log_ratios, 0.0).confidence_interval(confidence)
    return Estimate(mean, float(found.low), float(found.high), len(log_ratios), confidence)


def constant(values: Sequence[float]) -> bool:
    """Whether the values do not vary beyond rounding, so that no t statistic exists."""
    return stdev(values) <= NO_SPREAD


def slower_p(differences: Sequence[float]) -> float:
    """One-sided p of the paired t-test that the mean of ``differences`` is below 0."""
    if constant(differences):
        return 0.0 if fmean(differences) < -NO_SPREAD else 1.0
    return float(stats.ttest_1samp(differences, 0.0, alternative="less").pvalue)


def holm(p_values: Sequence[float], level: float) -> tuple[bool, ...]:
    """Which hypotheses Holm's step-down procedure rejects at family-wise ``level``.

    Holm, S. (1979), A simple sequentially rejective multiple test procedure. Scandinavian
    Journal of Statistics 6, 65-70.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    rejected = [False] * len(p_values)
    for position, index in enumerate(order):
        if p_values[index] > level / (len(p_values) - position):
            break
        rejected[index] = True
    return tuple(rejected)


def power(distance: float, spread: float, launches: int, confidence: float) -> float:
    """Chance that the interval of ``launches`` log ratios lies beyond a bound.

    Args:
        distance: True log ratio minus the bound, positive.
        spread: Standard deviation of the log ratios.
        launches: Their number, at least 2.
        confidence: Of the two-sided interval.
    """
    if spread <= NO_SPREAD:
        return 1.0 if distance > 0 else 0.0
    freedom = launches - 1
    critical = stats.t.ppf((1 + confidence) / 2, freedom)
    return float(stats.nct.sf(critical, freedom, distance * math.sqrt(launches) / spread))


def launches_for(
    distance: float, spread: float, confidence: float, *, least: int, most: int
) -> int:
    """The smallest number of launches with `POWER` to resolve ``distance``; ``most`` if none."""
    for launches in range(least, most):
        if power(distance, spread, launches, confidence) >= POWER:
            return launches
    return most


def resolvable(spread: float, launches: int, confidence: float) -> float:
    """The smallest distance, log ratio, that ``launches`` launches resolve with `POWER`."""
    if spread <= NO_SPREAD:
        return 0.0
    # Twice the sum of the two central quantiles bounds the root from above.
    freedom = launches - 1
    quantiles = stats.t.ppf((1 + confidence) / 2, freedom) + stats.t.ppf(POWER, freedom)
    bound = 2 * quantiles * spread / math.sqrt(launches)
    return float(
        optimize.brentq(
            lambda distance: power(distance, spread, launches, confidence) - POWER, 0.0, bound
        )
    )


def root_mean_square(values: Sequence[float]) -> float:
    """Standard deviation of values whose true mean is 0."""
    return math.sqrt(fmean(value * value for value in values))
