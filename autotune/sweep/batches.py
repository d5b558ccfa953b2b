"""Whether a script trains the same global batch under every setup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.outcome import Outcome, Probe
from autotune.setup import Setup

TOLERANCE = 0.1
"""Share by which the tokens of a step may differ: padding goes with the micro batch."""


def same_batch(baseline: Setup, probes: Sequence[Probe], outcome: Outcome) -> Outcome:
    """The outcome, or ``inert`` where the script trained another batch than under the baseline.

    The script has to obey the setup's micro batch and accumulation by itself; if it does not,
    less work would look like a gain.

    Args:
        baseline: The setup that the user has today.
        probes: Earlier probes.
        outcome: Of the probe that has just ended.
    """
    wanted = next(
        (
            probe.outcome.measurement.tokens_per_step
            for probe in probes
            if probe.setup == baseline and probe.outcome.measurement is not None
        ),
        None,
    )
    if outcome.kind != "ok" or outcome.measurement is None or wanted is None:
        return outcome
    found = outcome.measurement.tokens_per_step
    if abs(found - wanted) <= TOLERANCE * wanted:
        return outcome
    reason = (
        f"The script trained {found:,} tokens a step, under the baseline {wanted:,}: it does not "
        "obey the setup's micro batch and accumulation; pass it {micro_batch} and "
        "{gradient_accumulation}."
    )
    return replace(outcome, kind="inert", reason=reason)
