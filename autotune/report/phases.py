"""The parts of the result on each phase: whom it kept, whom it dropped, what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.decide import Out, winner
from autotune.outcome import PHASES
from autotune.report.evidence import Evidence
from autotune.setup import Setup


def screening_part(found: Evidence) -> dict[str, Any] | None:
    """What the search left for the race; None before that was decided.

    Its ratios are optimistic: the best of many noisy numbers are the lucky ones. ``limit`` is
    how far behind the leader an entrant may be, a log ratio.
    """
    race = found.about.get("race")
    if race is None:
        return None
    best = winner(found.sound)
    entrants = zip(map(Setup.from_dict, race["entrants"]), race["log_ratios"], strict=True)
    return {
        "winner": best.setup.key if best else None,
        "ratio": best.ratio if best else None,
        "optimistic": True,
        "entrants": [{"key": setup.key, "ratio": math.exp(log)} for setup, log in entrants],
        "dropped": race["dropped"],
        "limit": race["limit"],
    }


def race_part(found: Evidence) -> dict[str, Any] | None:
    """Complete blocks of the race and who left it; None before the screening."""
    if found.race is None:
        return None
    return {"blocks": len(found.race.rows), "out": _out(found.race.out)}


def confirmation_part(found: Evidence) -> dict[str, Any] | None:
    """How far the last confirmation got and who left it; None before it was planned."""
    state = found.confirmation
    if state is None:
        return None
    return {
        "round": found.round,
        "blocks": len(state.rows),
        "wanted": state.wanted,
        "most": state.most,
        "out": _out(state.out),
    }


def _out(left: Sequence[Out]) -> list[dict[str, str]]:
    return [{"key": item.setup.key, "reason": item.reason} for item in left]


def spent_part(found: Evidence) -> dict[str, Any]:
    """What the run has cost; null where the run did not keep it."""
    kept = found.about.get("spent") or {}
    phases: dict[str, Any] = {phase: kept[phase] for phase in PHASES if phase in kept}
    return {
        "probes": len(found.probes),
        "launches": _total(phases, "launches"),
        "wall_seconds": _total(phases, "seconds"),
        "launch_seconds": _total(phases, "launch_seconds"),
        "probe_seconds": _total(phases, "probe_seconds"),
        "timed_seconds": sum(probe.outcome.seconds.get("timed", 0.0) for probe in found.probes),
        "saved_seconds": sum(probe.outcome.saved_seconds for probe in found.probes),
        "phases": phases,
    }


def numerics_cost(found: Evidence) -> dict[str, float] | None:
    """Seconds of the readings and their share of the whole run's; None where nothing was kept."""
    spent = spent_part(found)
    if "numerics" not in spent["phases"] or not spent["wall_seconds"]:
        return None
    seconds = spent["phases"]["numerics"]["seconds"]
    return {"seconds": seconds, "share": seconds / spent["wall_seconds"]}


def _total(phases: Mapping[str, Mapping[str, float]], name: str) -> float | None:
    return sum(cost[name] for cost in phases.values()) if phases else None
