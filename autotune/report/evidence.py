"""What the decisions make of a run's probes; everything in the result is read from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.decide import (
    Out,
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
from autotune.numerics.findings import Finding
from autotune.numerics.thresholds import Thresholds
from autotune.outcome import Probe
from autotune.report.gates import Gates
from autotune.setup import Setup

DEFAULT_MARGIN = 0.01
USUAL_RANKS = 2  # of a run that does not know its own
NO_TARGET: Mapping[str, Any] = {
    **{"world_size": None, "steps": None, "learning_rate": None},
    "assumed": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A run, and what was decided about it.

    Attributes:
        probes: Every probe.
        about: What the store keeps with the run.
        findings: What it found about numerics, by name.
        gates: How its setups do at the gates.
        baseline: The setup that the user has today.
        rules: Of race and confirmation.
        ranked: Standings of the search alone, the best backward ratio first.
        best: The best of them that may win and that no gate refuses.
        race: The race as far as it got; None before the screening.
        confirmation: The last confirmation as far as it got, without what a gate refuses by
            limits that are newer than it; None before it was planned.
        verdict: What the last confirmation says; None until it is over.
        noise_floor: Standard deviation of the log ratio of two probes of one setup in one
            launch; None where no launch probed the baseline twice.
    """

    probes: Sequence[Probe]
    about: Mapping[str, Any]
    findings: Mapping[str, Finding]
    gates: Gates
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
    def sound(self) -> Sequence[Standing]:
        """The standings without the setups that a gate refuses."""
        return _sound(self.ranked, self.gates)

    @property
    def target(self) -> Mapping[str, Any]:
        """The real run; all null where the run does not know it."""
        return self.about.get("target") or NO_TARGET

    @property
    def ranks(self) -> int:
        """Ranks of the measurement."""
        return int(self.about.get("fingerprint", {}).get("world_size", USUAL_RANKS))

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


def gather(
    probes: Sequence[Probe],
    about: Mapping[str, Any],
    findings: Mapping[str, Finding],
) -> Evidence:
    """Replays the run's decisions on its probes.

    Args:
        probes: Every probe of the run.
        about: What the store keeps with it.
        findings: What it found about numerics, by name.
    """
    baseline = Setup.from_dict(about["baseline"])
    rules = Rules(margin=about.get("margin", DEFAULT_MARGIN))
    gates = Gates(baseline, findings, Thresholds(about.get("gates", {})))
    ranked = standings([probe for probe in probes if probe.phase == "search"], baseline)
    confirmation = _confirmation(probes, about, rules, baseline)
    over = confirmation is not None and _over(confirmation, about["confirmations"][-1])
    confirmation = None if confirmation is None else _without_refused(confirmation, gates)
    return Evidence(
        probes=probes,
        about=about,
        findings=gates.findings,
        gates=gates,
        baseline=baseline,
        rules=rules,
        ranked=ranked,
        best=winner(_sound(ranked, gates)),
        race=_race(probes, about, rules, baseline),
        confirmation=confirmation,
        verdict=verdict(confirmation) if confirmation is not None and over else None,
        noise_floor=noise_floor(probes),
    )


def _sound(ranked: Sequence[Standing], gates: Gates) -> list[Standing]:
    return [item for item in ranked if gates.refusal(item.setup) is None]


def _without_refused(state: State, gates: Gates) -> State:
    """Refused setups are out: whoever makes a limit stricter wants no winner beyond it."""
    refused = {setup: gates.refusal(setup) for setup in state.setups}
    out = tuple(
        Out(setup, len(state.rows), f"unsafe: {gate.reason}")
        for setup, gate in refused.items()
        if gate is not None
    )
    left = tuple(setup for setup, gate in refused.items() if gate is None)
    return replace(state, setups=left, out=(*state.out, *out))


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
