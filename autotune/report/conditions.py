"""Warnings about how well the machine could be measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, median

from autotune.decide.race import LEAST_LAUNCHES, claim_confidence
from autotune.decide.stats import AGAINST_TWO, launches_for, resolvable
from autotune.outcome import Measurement
from autotune.report.drift import find_drift
from autotune.report.evidence import Evidence
from autotune.report.warning import Warning, WarningKind, percent
from autotune.setup import Setup

NOTABLE = 0.2  # share of the probes
BUSY = 0.1  # share of the cores
APART = 0.05  # between throughput at the median step and over all steps
MOST_LAUNCHES = 200  # more are not counted out


def unsteady(found: Evidence) -> Iterator[Warning]:
    """Many probes were timed before their steps had settled."""
    measured = [probe.outcome.measurement for probe in found.good if probe.outcome.measurement]
    restless = sum(not item.steady for item in measured)
    if measured and restless >= NOTABLE * len(measured):
        yield Warning(
            WarningKind.UNSTEADY,
            f"In {restless} of {len(measured)} probes the steps had not settled when they were "
            "timed.",
            f"{raise_setting(found, 'warm_up_cap')} in a sweep of another name.",
        )


def raise_setting(found: Evidence, setting: str) -> str:
    """Advice to double a setting of ``measure``."""
    now = found.measure(setting)
    return f"Raise measure.{setting}" + (f" from {now} to {2 * now}" if now else "")


def drift(found: Evidence) -> Iterator[Warning]:
    """The baseline itself became slower or faster."""
    trend = find_drift(found.probes, found.noise_floor, found.rules.log_margin)
    if trend is None:
        return
    first, last = trend.launches
    where = (
        f"over {trend.values} probes in launch {first}"
        if first == last
        else f"from launch {first} to launch {last}"
    )
    way = "faster" if trend.log_change > 0 else "slower"
    yield Warning(
        WarningKind.DRIFT,
        f"The baseline became {percent(abs(math.expm1(trend.log_change)))} {way} {where} "
        f"(p = {trend.p:.1g}).",
        "Ratios are taken within launches, so most of it cancels; seconds and tokens a second "
        "do not compare across the run. Look for heat, a power limit or a growing load.",
    )


def noise_above_margin(found: Evidence) -> Iterator[Warning]:
    """Two probes of one setup differ by more than a gain that is worth a change."""
    floor, rules = found.noise_floor, found.rules
    if floor is None or floor <= rules.margin:
        return
    entrants = len(found.confirmation.entrants) if found.confirmation else 1
    confidence, spread = claim_confidence(rules, entrants), floor * AGAINST_TWO
    launches = max(LEAST_LAUNCHES, found.verdict.launches if found.verdict else 0)
    gain = math.expm1(rules.log_margin + resolvable(spread, launches, confidence))
    needed = launches_for(
        rules.log_margin, spread, confidence, least=LEAST_LAUNCHES, most=MOST_LAUNCHES
    )
    yield Warning(
        WarningKind.NOISE_ABOVE_MARGIN,
        f"The noise floor of {percent(floor)} is above the margin of {percent(rules.margin)}.",
        f"{launches} launches can confirm gains from about {percent(gain)} here; a gain of "
        f"{percent(math.expm1(2 * rules.log_margin))} takes {count_launches(needed)}.",
    )


def count_launches(needed: int) -> str:
    """A number of launches that was computed with `MOST_LAUNCHES` as its bound."""
    return f"more than {needed}" if needed >= MOST_LAUNCHES else f"about {needed}"


def throttled(found: Evidence) -> Iterator[Warning]:
    """A GPU lowered its clocks while steps were timed."""
    slowed = [probe.outcome.throttled for probe in found.probes if probe.outcome.throttled]
    if slowed:
        reasons = ", ".join(dict.fromkeys(name for names in slowed for name in names))
        yield Warning(
            WarningKind.THROTTLED,
            f"A GPU lowered its clocks in {len(slowed)} of {len(found.probes)} probes: {reasons}.",
            "See nvidia-smi -q -d PERFORMANCE; better cooling or a higher power limit ends it, "
            "locked clocks (nvidia-smi -lgc) make it equal for all setups.",
        )


def busy(found: Evidence) -> Iterator[Warning]:
    """Other processes worked on the same cores."""
    shares = [probe.others_busy for probe in found.probes if probe.others_busy is not None]
    disturbed = [share for share in shares if share > BUSY]
    if shares and len(disturbed) >= NOTABLE * len(shares):
        yield Warning(
            WarningKind.BUSY,
            f"Other processes used {percent(fmean(shares), 0)} of the cores on average, and over "
            f"{percent(BUSY, 0)} of them in {len(disturbed)} of {len(shares)} probes.",
            f"Stop them ({percent(max(shares), 0)} at worst), or take a machine of your own.",
        )


def mean_median(found: Evidence) -> Iterator[Warning]:
    """For the winner or the baseline the median step does not speak for all steps."""
    for setup in dict.fromkeys((found.baseline, found.winner)):
        measured = [
            probe.outcome.measurement
            for probe in found.good
            if probe.setup == setup and probe.outcome.measurement is not None
        ]
        if setup is not None and measured:
            yield from _mean_median(found, setup, measured)


def _mean_median(found: Evidence, setup: Setup, measured: list[Measurement]) -> Iterator[Warning]:
    typical = fmean(item.median_backward_tokens_per_second for item in measured)
    overall = fmean(item.backward_tokens_per_second for item in measured)
    if abs(overall / typical - 1) <= APART:
        return
    slowest = max(max(item.backward_seconds) / median(item.backward_seconds) for item in measured)
    yield Warning(
        WarningKind.MEAN_MEDIAN,
        f"{setup.key} makes {typical:,.0f} backward tokens a second at its median step and "
        f"{overall:,.0f} over all steps; its slowest step took {slowest:.1f} times the median.",
        f"Look for what stalls single steps; or {raise_setting(found, 'timed_steps').lower()}, in "
        "a sweep of another name.",
    )
