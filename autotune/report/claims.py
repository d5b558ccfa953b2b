"""Warnings about what the verdict can and cannot say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import stdev

from autotune.decide import Claim, Standing, State
from autotune.decide.race import LEAST_LAUNCHES, against_baseline
from autotune.decide.stats import launches_for
from autotune.report.conditions import MOST_LAUNCHES, count_launches, raise_setting
from autotune.report.evidence import Evidence
from autotune.report.warning import Warning, WarningKind, percent
from autotune.setup import Setup

CLEAR = 2  # noise floors by which another setup must be better end-to-end to be named


def unconfirmed(found: Evidence, run: str) -> Iterator[Warning]:
    """No confirmation has ended."""
    if found.verdict is not None:
        return
    again = f"autotune confirm {run} --resume" if found.round else "autotune sweep FILE --resume"
    yield Warning(
        WarningKind.UNCONFIRMED,
        "Unconfirmed: the winner is the best of many single noisy probes; its ratio is optimistic.",
        f"Go on with {again}.",
    )


def few_launches(found: Evidence, run: str) -> Iterator[Warning]:
    """The interval contains the margin: how many launches would it take?"""
    state, verdict = found.confirmation, found.verdict
    if state is None or verdict is None or verdict.claim is None or verdict.control is None:
        return
    if verdict.name != "inconclusive" or verdict.control.excludes(0.0):
        return
    claim = max(
        (item for item in verdict.claims if item.leaves_open(found.rules.log_margin)),
        key=lambda item: item.backward.mean,
        default=verdict.claim,
    )
    low, high = claim.backward.interval
    yield Warning(
        WarningKind.FEW_LAUNCHES,
        f"{verdict.launches} launches leave the gain of {claim.setup.key} between "
        f"{percent(low - 1)} and {percent(high - 1)}; the margin is {percent(found.rules.margin)}.",
        _launches_advice(found, state, claim, run),
    )


def _launches_advice(found: Evidence, state: State, claim: Claim, run: str) -> str:
    needed = launches_for(
        abs(claim.backward.mean - found.rules.log_margin),
        stdev(against_baseline(state, claim.setup)),
        claim.backward.confidence,
        least=LEAST_LAUNCHES,
        most=MOST_LAUNCHES,
    )
    if needed < MOST_LAUNCHES:
        return (
            f"At this spread about {needed} would decide: autotune confirm {run} "
            f"--launches {needed}"
        )
    return (
        f"At this spread it would take {count_launches(needed)}; "
        f"{raise_setting(found, 'timed_steps').lower()}, or keep what you have: whatever the gain "
        "is, it is near the margin."
    )


def control(found: Evidence, run: str) -> Iterator[Warning]:
    """The baseline differs from itself."""
    estimate = found.verdict.control if found.verdict else None
    if estimate is None or not estimate.excludes(0.0):
        return
    low, high = estimate.interval
    yield Warning(
        WarningKind.CONTROL,
        f"The baseline differs from itself: {low:.3f}x to {high:.3f}x "
        f"({percent(estimate.confidence, 0)} interval, {estimate.launches} launches).",
        "Something changes within the launches, such as heat or another job; end it, then "
        f"autotune confirm {run}",
    )


@dataclass(frozen=True, slots=True)
class Rival:
    """Another setup beside the winner, both by the same phase: the search is optimistic.

    Attributes:
        setup: The other setup.
        own: Its ratios to the baseline.
        winners: The winner's.
        may_win: Whether its whole step is not slower than the baseline's.
        source: Said where a verdict is there but these numbers are the search's.
    """

    setup: Setup
    own: Standing
    winners: Standing
    may_win: bool
    source: str


def backward_only(found: Evidence) -> Iterator[Warning]:
    """A faster backward pass of a slower step."""
    slower = [rival for rival in _rivals(found) if not rival.may_win]
    best = max(slower, key=lambda rival: rival.own.ratio, default=None)
    if best is not None and best.own.ratio > best.winners.ratio:
        yield Warning(
            WarningKind.BACKWARD_ONLY,
            f"{best.setup.key} has the faster backward ({best.own.ratio:.2f}x{best.source}) but is "
            f"slower end-to-end ({best.own.end_to_end_ratio:.2f}x) and cannot win.",
            "It moves work out of the backward pass; the whole step is what you pay for.",
        )


def end_to_end(found: Evidence) -> Iterator[Warning]:
    """Another setup than the winner has the better whole step, beyond noise."""
    clear = math.exp(CLEAR * (found.noise_floor or 0.0))
    better = [
        rival
        for rival in _rivals(found)
        if rival.own.end_to_end_ratio > rival.winners.end_to_end_ratio * clear
    ]
    best = max(better, key=lambda rival: rival.own.end_to_end_ratio, default=None)
    if best is not None:
        yield Warning(
            WarningKind.END_TO_END,
            f"{best.setup.key} is the better one end-to-end: {best.own.end_to_end_ratio:.2f}x "
            f"against {best.winners.end_to_end_ratio:.2f}x of {best.winners.setup.key}"
            f"{best.source}.",
            f"If the whole step matters more to you: --setup {best.setup.key} exports it.",
        )


def _rivals(found: Evidence) -> Sequence[Rival]:
    """Every setup but the winner: by the confirmation, or else by the search."""
    searched = {item.setup: item for item in found.sound}
    claims = found.verdict.claims if found.verdict else ()
    claimed = {
        item.setup: Standing(item.setup, item.backward.ratio, item.end_to_end.ratio)
        for item in claims
    }
    able = {item.setup: item.may_win for item in claims}
    confirmed = {found.baseline: Standing(found.baseline, 1.0, 1.0), **claimed}
    rivals = []
    for setup in {**searched, **claimed}:
        late = setup in claimed and found.winner in confirmed
        known = confirmed if late else searched
        if found.winner in known and setup in known and setup != found.winner:
            may_win = able[setup] if late else known[setup].may_win
            source = "" if late or not claims else " in the search"
            rivals.append(Rival(setup, known[setup], known[found.winner], may_win, source))
    return rivals


def budget(found: Evidence, run: str) -> Iterator[Warning]:
    """One for everything that the budget did not allow."""
    for cut in found.about.get("cuts", []):
        late = cut.startswith("confirm:")
        yield Warning(
            WarningKind.BUDGET,
            f"The budget did not allow everything. {cut}.",
            f"autotune confirm {run} takes the launches it needs." if late else _more(found),
        )


def _more(found: Evidence) -> str:
    planned = found.about.get("planned", {})
    limits = [
        f"budget.{name} from {planned[name]:g} to {2 * planned[name]:g}"
        for name in ("minutes", "probes")
        if planned.get(name) is not None
    ]
    raised = " and ".join(limits) or "the budget"
    return f"Raise {raised} in a sweep of another name."
