"""What the decisions make of a run's probes; everything in the result is read from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.decide import (
    Rules,
    Standing,
    State,
    Verdict,
    next_block,
    noise_floor,
    planned_confirmation,
    resume,
    standings,
    start_race,
    verdict,
    winner,
)
from autotune.outcome import Probe
from autotune.setup import Setup

DEFAULT_MARGIN = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A run, and what was decided about it.

    Attributes:
        probes: Every probe.
        about: What the store keeps with the run.
        baseline: The setup that the user has today.
        rules: Of race and confirmation.
        ranked: Standings of the search alone, the best backward ratio first.
        best: The best of them that may win.
        race: The race as far as it got; None before the screening.
        confirmation: The last confirmation as far as it got; None before it was planned.
        verdict: What the last confirmation says; None until it is over.
        noise_floor: Standard deviation of the log ratio of two probes of one setup in one
            launch; None where no launch probed the baseline twice.
    """

    probes: Sequence[Probe]
    about: Mapping[str, Any]
    baseline: Setup
    rules: Rules
    ranked: Sequence[Standing]
    best: Standing | None
    race: State | None
    confirmation: State | None
    verdict: Verdict | None
    noise_floor: float | None

    @property
    def winner(self) -> Setup | None:
        """The setup to use; None while nothing could be compared."""
        if self.verdict is not None:
            return self.verdict.winner
        return self.best.setup if self.best else None

    @property
    def good(self) -> Sequence[Probe]:
        """The ``ok`` probes."""
        return [probe for probe in self.probes if probe.outcome.kind == "ok"]

    @property
    def round(self) -> int:
        """Number of the last confirmation, from 0."""
        return max(0, len(self.about.get("confirmations") or []) - 1)

    def measure(self, setting: str) -> int | None:
        """A setting of the sweep file's ``measure``; None where the run does not know it."""
        found = self.about.get("fingerprint", {}).get("measure", {}).get(setting)
        return None if found is None else int(found)


def gather(probes: Sequence[Probe], about: Mapping[str, Any]) -> Evidence:
    """Replays the run's decisions on its probes.

    Args:
        probes: Every probe of the run.
        about: What the store keeps with it.
    """
    baseline = Setup.from_dict(about["baseline"])
    rules = Rules(margin=about.get("margin", DEFAULT_MARGIN))
    ranked = standings([probe for probe in probes if probe.phase == "search"], baseline)
    confirmation = _confirmation(probes, about, rules, baseline)
    over = confirmation is not None and _over(confirmation, about["confirmations"][-1])
    return Evidence(
        probes=probes,
        about=about,
        baseline=baseline,
        rules=rules,
        ranked=ranked,
        best=winner(ranked),
        race=_race(probes, about, rules, baseline),
        confirmation=confirmation,
        verdict=verdict(confirmation) if confirmation is not None and over else None,
        noise_floor=noise_floor(probes),
    )


def _race(
    probes: Sequence[Probe], about: Mapping[str, Any], rules: Rules, baseline: Setup
) -> State | None:
    if "race" not in about:
        return None
    entrants = tuple(map(Setup.from_dict, about["race"]["entrants"]))
    return resume(start_race(rules, baseline, entrants), probes)


def _confirmation(
    probes: Sequence[Probe], about: Mapping[str, Any], rules: Rules, baseline: Setup
) -> State | None:
    plans = about.get("confirmations")
    if not plans:
        return None
    begun = planned_confirmation(rules, baseline, plans[-1])
    return resume(begun, probes, len(plans) - 1)


def _over(confirmation: State, plan: Mapping[str, Any]) -> bool:
    """Whether it is decided, or the budget ended it just there; else it was interrupted."""
    return next_block(confirmation) is None or plan.get("ended") == len(confirmation.rows)
