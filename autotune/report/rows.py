"""The rows of the result: one for every setup, and one with the raw times of every probe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from autotune.decide import Standing
from autotune.outcome import Collective, Measurement, Probe
from autotune.report.evidence import Evidence
from autotune.report.plain import plain
from autotune.setup import Setup


def setup_rows(found: Evidence) -> list[dict[str, Any]]:
    """One row a setup over its probes of all phases: the best of the search first.

    ``ratio`` and ``end_to_end_ratio`` are those of the search alone.
    """
    order = {standing.setup: position for position, standing in enumerate(found.ranked)}
    by_setup: dict[Setup, list[Probe]] = {}
    for probe in found.probes:
        by_setup.setdefault(probe.setup, []).append(probe)
    ratios = {standing.setup: standing for standing in found.ranked}
    setups = sorted(by_setup, key=lambda setup: order.get(setup, len(order)))
    return [
        {**_row(setup, by_setup[setup], ratios.get(setup)), **_judged(found, setup)}
        for setup in setups
    ]


def _row(setup: Setup, probes: Sequence[Probe], standing: Standing | None) -> dict[str, Any]:
    good = [probe for probe in probes if probe.outcome.kind == "ok"]
    shown = (good or probes)[-1].outcome
    row: dict[str, Any] = {
        "key": setup.key,
        "setup": setup.to_dict(),
        "outcome": shown.kind,
        "reason": shown.reason,
        "log": shown.log or None,
        "probes": len(probes),
        "races": sum(probe.phase != "search" for probe in probes),
        "ratio": standing.ratio if standing else None,
        "end_to_end_ratio": standing.end_to_end_ratio if standing else None,
    }
    measured = [
        probe.outcome.measurement
        for probe in good or probes
        if probe.outcome.measurement is not None
    ]
    return {
        **row,
        **_means(measured),
        "useful_step_fraction": useful_steps(good or probes, setup),
    }


def useful_steps(probes: Sequence[Probe], setup: Setup) -> float | None:
    """Share of the real run's steps that apply an update, by the setup's last probe that has it."""
    for probe in reversed(probes):
        measured = probe.outcome.measurement
        if probe.setup == setup and measured and measured.useful_step_fraction is not None:
            return measured.useful_step_fraction
    return None


def _judged(found: Evidence, setup: Setup) -> dict[str, Any]:
    """What the gates say; a setup that one of them refuses is unsafe, however fast it is."""
    row: dict[str, Any] = {"gates": plain(found.gates.results(setup))}
    refused = found.gates.refusal(setup)
    return row if refused is None else {**row, "outcome": "unsafe", "reason": refused.reason}


def _means(measured: Sequence[Measurement]) -> dict[str, Any]:
    """Numbers of a setup over its probes; null where nothing was measured."""
    if not measured:
        names = (
            "backward_seconds forward_seconds step_seconds backward_tokens_per_second "
            "median_backward_tokens_per_second end_to_end_tokens_per_second wire skipped_steps "
            "peak_memory_bytes"
        )
        return dict.fromkeys(names.split())
    return {
        "backward_seconds": fmean(fmean(item.backward_seconds) for item in measured),
        "forward_seconds": fmean(fmean(item.forward_seconds) for item in measured),
        "step_seconds": fmean(fmean(item.step_seconds) for item in measured),
        "backward_tokens_per_second": fmean(item.backward_tokens_per_second for item in measured),
        "median_backward_tokens_per_second": fmean(
            item.median_backward_tokens_per_second for item in measured
        ),
        "end_to_end_tokens_per_second": fmean(
            item.end_to_end_tokens_per_second for item in measured
        ),
        "wire": _wire(measured[-1].wire),
        "skipped_steps": sum(item.skipped_steps for item in measured),
        "peak_memory_bytes": max(item.peak_memory_bytes for item in measured),
    }


def _wire(collectives: Sequence[Collective]) -> dict[str, Any] | None:
    """Gradient collectives of one optimizer step, all kinds together; null without a wire."""
    if not collectives:
        return None
    return {
        "dtype": "+".join(dict.fromkeys(item.dtype for item in collectives)),
        "bytes": sum(item.bytes for item in collectives),
        "calls": sum(item.calls for item in collectives),
        "collectives": [asdict(item) for item in collectives],
    }


def measurement_rows(probes: Sequence[Probe]) -> list[dict[str, Any]]:
    """Every probe with its raw step times, in the order in which they were taken."""
    return [_measurement(probe) for probe in probes]


def _measurement(probe: Probe) -> dict[str, Any]:
    return {
        "number": probe.number,
        "phase": probe.phase,
        "block": probe.block,
        "round": probe.round,
        "launch": probe.launch,
        "baseline": probe.baseline,
        "control": probe.control,
        "key": probe.setup.key,
        "outcome": probe.outcome.kind,
        "reason": probe.outcome.reason,
        **_times(probe.outcome.measurement),
        "saved_seconds": probe.outcome.saved_seconds,
        "throttled": list(probe.outcome.throttled),
        "others_busy": probe.others_busy,
        "finished_at": probe.finished_at,
    }


def _times(measured: Measurement | None) -> dict[str, Any]:
    """Times of each step; null where nothing was measured."""
    if measured is None:
        names = (
            "forward_seconds backward_seconds step_seconds skipped_steps tokens_per_step "
            "end_to_end_seconds end_to_end_steps steady losses"
        )
        return dict.fromkeys(names.split())
    return {
        "forward_seconds": list(measured.forward_seconds),
        "backward_seconds": list(measured.backward_seconds),
        "step_seconds": list(measured.step_seconds),
        "skipped_steps": measured.skipped_steps,
        "tokens_per_step": measured.tokens_per_step,
        "end_to_end_seconds": measured.end_to_end_seconds,
        "end_to_end_steps": measured.end_to_end_steps,
        "steady": measured.steady,
        # JSON has no infinity and no NaN.
        "losses": [loss if math.isfinite(loss) else None for loss in measured.losses],
    }
