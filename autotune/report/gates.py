"""How the setups of a run do at the gates, by the limits that hold now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.numerics.findings import Examined, Finding, Missing, Trained, judged
from autotune.numerics.gates import GateResult, refusal
from autotune.numerics.names import gates_name
from autotune.numerics.thresholds import NUMBERED, THRESHOLDS, Threshold, Thresholds, show_number
from autotune.numerics.training import Training
from autotune.readings import GradientReading
from autotune.setup import Setup


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates of a run.

    Attributes:
        baseline: What the user has; it is judged like every setup and never refused.
        findings: What the run has found, by name.
        thresholds: The limits.
    """

    baseline: Setup
    findings: Mapping[str, Finding]
    thresholds: Thresholds

    def reading(self, setup: Setup) -> GradientReading | None:
        """What was measured of a setup; None where it was not examined."""
        found = self.findings.get(gates_name(setup))
        return found.reading if isinstance(found, Examined) else None

    def training(self, setup: Setup) -> Training | None:
        """What a script trained under a setup; None where it was not looked at."""
        found = self.findings.get(gates_name(setup))
        return found.training if isinstance(found, Trained) else None

    def missing(self, setup: Setup) -> str | None:
        """Why a setup could not be examined; None where it was, or where nobody tried."""
        found = self.findings.get(gates_name(setup))
        return found.reason if isinstance(found, Missing) else None

    def results(self, setup: Setup) -> Sequence[GateResult]:
        """Of every gate that applies; empty for a setup that was not examined."""
        return judged(setup, self.findings, self.thresholds)

    def refusal(self, setup: Setup) -> GateResult | None:
        """The gate that refuses a setup, if one does."""
        return None if setup == self.baseline else refusal(self.results(setup))

    def changed(self) -> list[str]:
        """The user's own limits, as in ``gain 0.02 (default 0.01)``."""
        return [
            f"{gate} {show_number(limit, threshold.unit)} (default {_default(threshold)})"
            for gate in NUMBERED
            for threshold in (THRESHOLDS[gate],)
            for limit in (self.thresholds.user.get(gate),)
            if limit is not None and limit != threshold.limit
        ]


def _default(threshold: Threshold) -> str:
    """The default limit; from the least to the largest where it depends on the dtype."""
    limit = threshold.limit
    assert limit is not None
    if not isinstance(limit, Mapping):
        return show_number(limit, threshold.unit)
    least, most = (show_number(end(limit.values()), threshold.unit) for end in (min, max))
    return f"{least} to {most} by dtype"
