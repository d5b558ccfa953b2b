"""Who goes from the search into the race."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autotune.decide.race import Out
from autotune.decide.score import Standing, backward_rate
from autotune.decide.stats import root_mean_square
from autotune.outcome import Probe
from autotune.setup import Setup

LEAST_LIMIT = 0.08  # log ratio
FLOORS = 4  # noise floors behind the leader that still enter the race
MOST_ENTRANTS = 8
MOST_QUALIFIERS = 16


@dataclass(frozen=True, slots=True)
class Screened:
    """What the search leaves for the race.

    Attributes:
        entrants: Setups of the race beside the baseline, the best first.
        log_ratios: Of each entrant to the baseline, from the search; optimistic, because the
            best of many noisy numbers are the lucky ones.
        dropped: The others, with the reason.
        limit: How far behind the leader an entrant may be, log ratio.
    """

    entrants: tuple[Setup, ...]
    log_ratios: Mapping[Setup, float]
    dropped: tuple[Out, ...]
    limit: float


def screening_limit(noise_floor: float | None) -> float:
    """How far behind the leader a setup may be and still enter the race, log ratio.

    Infinite while the noise floor is not known: any difference might be noise.
    """
    return math.inf if noise_floor is None else max(LEAST_LIMIT, FLOORS * noise_floor)


def qualifiers(
    ranked: Sequence[Standing], baseline: Setup, noise_floor: float | None
) -> tuple[Setup, ...]:
    """Setups to probe once more, where more are near the leader than may enter the race.

    One noisy probe each is a poor choice among many that are alike.
    """
    near, _ = _near(ranked, baseline, screening_limit(noise_floor))
    if len(near) <= MOST_ENTRANTS:
        return ()
    return tuple(item.setup for item in near[:MOST_QUALIFIERS])


def _near(
    ranked: Sequence[Standing], baseline: Setup, limit: float
) -> tuple[list[Standing], float]:
    """Setups within ``limit`` of the leader, and the leader's log ratio."""
    able = [item for item in ranked if math.log(item.end_to_end_ratio) >= -limit]
    best = max((math.log(item.ratio) for item in able), default=0.0)
    near = [item for item in able if best - math.log(item.ratio) <= limit]
    return [item for item in near if item.setup != baseline], best


def screen(
    ranked: Sequence[Standing],
    baseline: Setup,
    noise_floor: float | None,
    risky: Collection[Setup] = (),
) -> Screened:
    """Keeps setups near the leader, at most `MOST_ENTRANTS`; the baseline needs no place.

    Where all of them are risky, the best of the others that gains takes the second place, however
    far behind it is: it is what may be chosen in their stead.

    Args:
        ranked: Standings, the best backward ratio first.
        baseline: What the user has today.
        noise_floor: As `noise_floor` gives it; None when it is not known.
        risky: Setups that are warned of in the real run.
    """
    limit = screening_limit(noise_floor)
    near, best = _near(ranked, baseline, limit)
    kept = _with_a_safe_one(near[:MOST_ENTRANTS], ranked, baseline, risky)
    others = [item for item in ranked if item not in kept and item.setup != baseline]
    return Screened(
        entrants=tuple(item.setup for item in kept),
        log_ratios={item.setup: math.log(item.ratio) for item in kept},
        dropped=tuple(Out(item.setup, 0, _why(item, near, limit, best)) for item in others),
        limit=limit,
    )


def _with_a_safe_one(
    kept: Sequence[Standing], ranked: Sequence[Standing], baseline: Setup, risky: Collection[Setup]
) -> list[Standing]:
    safe = (
        item
        for item in ranked
        if item.setup not in risky and item.setup != baseline and item.may_win and item.ratio > 1
    )
    best = next(safe, None)
    if not kept or best is None or any(item.setup not in risky for item in kept):
        return list(kept)
    leader, *others = kept
    return [leader, best, *others[: MOST_ENTRANTS - 2]]


def _why(item: Standing, near: Sequence[Standing], limit: float, best: float) -> str:
    if item in near:
        return f"not among the best {MOST_ENTRANTS} of the search"
    if best - math.log(item.ratio) <= limit:
        return f"slower end-to-end than the baseline ({item.end_to_end_ratio:.2f}x)"
    behind = -math.expm1(math.log(item.ratio) - best)
    return f"{behind:.0%} behind the leader of the search, over {-math.expm1(-limit):.0%}"


def noise_floor(probes: Iterable[Probe]) -> float | None:
    """Standard deviation of the log ratio of two probes of one setup in one launch.

    From the baseline against itself: neighbouring baseline probes of a launch in the search,
    and the two labels of each block of a confirmation. None without such a pair.
    """
    ratios = baseline_log_ratios(probes)
    return root_mean_square(ratios) if ratios else None


def baseline_log_ratios(probes: Iterable[Probe]) -> list[float]:
    """Log ratio of each baseline probe to the one before it in the same launch."""
    values = baseline_logs(probes).values()
    return [late - early for logs in values for early, late in pairwise(logs)]


def baseline_logs(probes: Iterable[Probe]) -> dict[int, list[float]]:
    """Log backward throughput of the baseline's probes, in order, of each launch."""
    launches: dict[int, list[float]] = {}
    for probe in probes:
        measured = probe.outcome.measurement
        ours = probe.baseline or probe.control
        if ours and probe.outcome.kind == "ok" and measured is not None:
            launches.setdefault(probe.launch, []).append(math.log(backward_rate(measured)))
    return launches
