"""Scores relative to the neighbouring baseline probes, so that the machine's drift cancels."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression, median

from autotune.outcome import Measurement, Probe
from autotune.setup import Setup

NEIGHBOURS = 2  # baselines on either side: one alone would put its own noise into every ratio
Throughput = Callable[[Measurement], float]


def backward_rate(measurement: Measurement) -> float:
    """What setups are ranked by: backward tokens per second at the median step."""
    return measurement.median_backward_tokens_per_second


def end_to_end_rate(measurement: Measurement) -> float:
    """What a winner must not lose in: tokens per second of the whole step."""
    return measurement.end_to_end_tokens_per_second


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a setup stands against the baseline; ratios above 1 are better.

    Attributes:
        setup: The setup.
        ratio: Backward tokens per second, at the median step, over the baseline's.
        end_to_end_ratio: End-to-end tokens per second over the baseline's.
    """

    setup: Setup
    ratio: float
    end_to_end_ratio: float

    @property
    def may_win(self) -> bool:
        """Work moved out of the backward is no gain: the whole step must not be slower."""
        return self.end_to_end_ratio >= 1.0


def probe_ratios(probes: Sequence[Probe], throughput: Throughput) -> dict[int, float]:
    """Ratio of each ``ok`` probe to its baseline, by probe number.

    The reference is a line through the two nearest baseline probes before and the two after in
    the same launch, by position and in log throughput; where one side has none, the nearest
    alone. Launches differ by more than the probes within one, so a baseline of another launch is
    used only when there is no other.
    """
    references = [probe for probe in probes if probe.baseline and probe.outcome.kind == "ok"]
    ratios = {}
    for probe in probes:
        measurement = probe.outcome.measurement
        if probe.outcome.kind != "ok" or measurement is None or probe.baseline:
            continue
        reference = _reference(probe, references, throughput)
        if reference is not None:
            ratios[probe.number] = throughput(measurement) / reference
    return ratios


def _reference(probe: Probe, references: Sequence[Probe], throughput: Throughput) -> float | None:
    near = [item for item in references if item.launch == probe.launch] or references
    if not near:
        return None
    before = [item for item in near if item.number < probe.number][-NEIGHBOURS:]
    after = [item for item in near if item.number > probe.number][:NEIGHBOURS]
    if not before or not after:
        return _value((before or after[::-1])[-1], throughput)
    numbers = [item.number for item in (*before, *after)]
    logs = [math.log(_value(item, throughput)) for item in (*before, *after)]
    slope, intercept = linear_regression(numbers, logs)
    return math.exp(intercept + slope * probe.number)


def _value(probe: Probe, throughput: Throughput) -> float:
    assert probe.outcome.measurement is not None
    return throughput(probe.outcome.measurement)


def standings(probes: Sequence[Probe], baseline: Setup) -> list[Standing]:
    """Every setup with an ``ok`` probe, best backward ratio first.

    A setup's ratio is the median of its probes' ratios; the baseline's is 1.
    """
    backward = probe_ratios(probes, backward_rate)
    whole = probe_ratios(probes, end_to_end_rate)
    numbers: Mapping[Setup, list[int]] = defaultdict(list)
    for probe in probes:
        if probe.number in backward:
            numbers[probe.setup].append(probe.number)
    found = [
        Standing(
            setup,
            median(backward[number] for number in taken),
            median(whole[number] for number in taken),
        )
        for setup, taken in numbers.items()
        if setup != baseline
    ]
    if any(probe.baseline and probe.outcome.kind == "ok" for probe in probes):
        found.append(Standing(baseline, 1.0, 1.0))
    return sorted(found, key=lambda standing: standing.ratio, reverse=True)


def winner(ranked: Sequence[Standing]) -> Standing | None:
    """The best setup that is not slower end-to-end than the baseline; None without any."""
    return next((standing for standing in ranked if standing.may_win), None)
