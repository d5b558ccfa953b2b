"""Steps that fp16 probes skipped, against what the replay of their loss scale expects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from autotune.numerics.names import trace_name
from autotune.numerics.policy import Interval, expected_skips
from autotune.outcome import Measurement, Probe
from autotune.readings import ScaleTrace
from autotune.report.evidence import Evidence
from autotune.setup import Setup, scaler_of

# A replay takes a tenth of a second, and a result is built again and again.
_expected = lru_cache(maxsize=1024)(expected_skips)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skips:
    """Skipped steps of one setup.

    Attributes:
        key: The setup.
        probes: Probes that are counted.
        steps: All of theirs, from the first.
        observed: Those of them that were skipped for overflow.
        expected: Low end, mean and high end of the 95 % interval.
        agrees: Whether the interval holds what was observed.
        text: One sentence for people.
    """

    key: str
    probes: int
    steps: int
    observed: int
    expected: tuple[float, float, float]
    agrees: bool
    text: str


def count_skips(found: Evidence) -> list[Skips]:
    """For each setup with a loss scale and a trace: by the last confirmation, or by all probes."""
    probes: dict[Setup, list[Measurement]] = {}
    for probe in _counted(found):
        measured = probe.outcome.measurement
        # Runs of older versions did not keep how long a probe trained.
        if probe.setup.loss_scale is not None and measured is not None and measured.trained_steps:
            probes.setdefault(probe.setup, []).append(measured)
    rows = []
    for setup, measured_probes in probes.items():
        trace = found.findings.get(trace_name(setup))
        if isinstance(trace, ScaleTrace):
            rows.append(_row(setup, measured_probes, trace))
    return rows


def _counted(found: Evidence) -> Sequence[Probe]:
    confirmed = [
        probe for probe in found.good if probe.phase == "confirm" and probe.round == found.round
    ]
    return confirmed or found.good


def _row(setup: Setup, measured: Sequence[Measurement], trace: ScaleTrace) -> Skips:
    steps = sum(item.trained_steps for item in measured)
    observed = sum(item.trained_skips for item in measured)
    low, mean, high = expected = _sum(setup, measured, trace)
    agrees = low <= observed <= high
    text = (
        f"In {len(measured)} probes of {setup.key} {observed} of {steps:,} steps were skipped for "
        f"overflow; replay expects {_whole(mean)} ({_whole(low)} to {_whole(high)})"
    )
    return Skips(
        key=setup.key,
        probes=len(measured),
        steps=steps,
        observed=observed,
        expected=expected,
        agrees=agrees,
        text=f"{text}." if agrees else f"{text}: they do not agree.",
    )


def _sum(
    setup: Setup, measured: Sequence[Measurement], trace: ScaleTrace
) -> tuple[float, float, float]:
    """Expectations of groups of probes of one length, added up."""
    assert setup.loss_scale is not None
    scaler = scaler_of(setup.backend, setup.zero_stage)
    lengths = Counter(item.trained_steps for item in measured)
    found: list[Interval] = [
        _expected(scaler, setup.loss_scale, trace, steps=steps, probes=probes)
        for steps, probes in sorted(lengths.items())
    ]
    low, mean, high = (sum(getattr(item, end) for item in found) for end in ("low", "mean", "high"))
    return low, mean, high


def _whole(steps: float) -> str:
    """A decimal only where there is one."""
    return f"{round(steps, 1):g}"
