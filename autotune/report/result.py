"""The result file, schema 1: what other programs may rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from autotune.decide import Standing, standings, winner
from autotune.errors import UsageError
from autotune.outcome import Collective, Measurement, Probe
from autotune.setup import Setup

SCHEMA = 1


def build_result(name: str, probes: Sequence[Probe], about: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a run so far, as JSON types.

    Args:
        name: The run's name.
        probes: Every probe of it.
        about: What the store keeps with the run: ``baseline``, ``removed``, ``planned``,
            ``spent``, ``fingerprint``.

    Returns:
        Keys as in the result file. Before a confirmation ``verdict`` is ``unconfirmed`` and
        ``interval`` is null.
    """
    baseline = Setup.from_dict(about["baseline"])
    ranked = standings(probes, baseline)
    best = winner(ranked)
    return {
        "schema": SCHEMA,
        "name": name,
        "verdict": "unconfirmed",
        "winner": best.setup.key if best else None,
        "baseline": baseline.key,
        "ratio": best.ratio if best else None,
        "end_to_end_ratio": best.end_to_end_ratio if best else None,
        "interval": None,
        "launches": len({probe.launch for probe in probes}),
        "noise_floor": None,
        "equivalent": [],
        "setups": setup_rows(probes, ranked),
        "removed": about["removed"],
        "planned": about["planned"],
        "spent": {**about.get("spent", {}), **_spent(probes)},
        "fingerprint": about["fingerprint"],
        "warnings": _warnings(probes, ranked, best),
    }


def setup_rows(probes: Sequence[Probe], ranked: Sequence[Standing]) -> list[dict[str, Any]]:
    """One row a setup: the best ratio first, then the failed ones."""
    order = {standing.setup: position for position, standing in enumerate(ranked)}
    by_setup: dict[Setup, list[Probe]] = {}
    for probe in probes:
        by_setup.setdefault(probe.setup, []).append(probe)
    ratios = {standing.setup: standing for standing in ranked}
    setups = sorted(by_setup, key=lambda setup: order.get(setup, len(order)))
    return [_row(setup, by_setup[setup], ratios.get(setup)) for setup in setups]


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
        "ratio": standing.ratio if standing else None,
        "end_to_end_ratio": standing.end_to_end_ratio if standing else None,
    }
    measured = [
        probe.outcome.measurement
        for probe in good or probes
        if probe.outcome.measurement is not None
    ]
    return {**row, **_means(measured), "gates": []}


def _means(measured: Sequence[Measurement]) -> dict[str, Any]:
    """Numbers of a setup over its probes; null where nothing was measured."""
    if not measured:
        names = (
            "backward_seconds forward_seconds step_seconds backward_tokens_per_second "
            "end_to_end_tokens_per_second wire skipped_steps peak_memory_bytes"
        )
        return dict.fromkeys(names.split())
    return {
        "backward_seconds": fmean(fmean(item.backward_seconds) for item in measured),
        "forward_seconds": fmean(fmean(item.forward_seconds) for item in measured),
        "step_seconds": fmean(fmean(item.step_seconds) for item in measured),
        "backward_tokens_per_second": fmean(item.backward_tokens_per_second for item in measured),
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


def _spent(probes: Sequence[Probe]) -> dict[str, Any]:
    return {
        "probes": len(probes),
        "timed_seconds": sum(probe.outcome.seconds.get("timed", 0.0) for probe in probes),
    }


def _warnings(
    probes: Sequence[Probe], ranked: Sequence[Standing], best: Standing | None
) -> list[str]:
    notes = ["Unconfirmed: the winner is the best of single noisy probes; its ratio is optimistic."]
    spread = baseline_spread(probes)
    if spread is not None:
        notes.append(
            f"{spread[0]} baseline probes varied by {spread[1]:.1%} (coefficient of variation "
            "of the backward throughput); smaller gains cannot be told from noise."
        )
    if best is not None and ranked[0] is not best:
        notes.append(
            f"{ranked[0].setup.key} has the faster backward ({ranked[0].ratio:.2f}x) but is "
            f"slower end-to-end ({ranked[0].end_to_end_ratio:.2f}x) and cannot win."
        )
    whole = max(ranked, key=lambda item: item.end_to_end_ratio, default=None)
    if best is not None and whole is not None and whole is not best:
        notes.append(
            f"{whole.setup.key} is the better one end-to-end: {whole.end_to_end_ratio:.2f}x "
            f"against {best.end_to_end_ratio:.2f}x."
        )
    return notes


def baseline_spread(probes: Sequence[Probe]) -> tuple[int, float] | None:
    """Number of baseline probes and their coefficient of variation; None for under 2."""
    values = [
        probe.outcome.measurement.backward_tokens_per_second
        for probe in probes
        if probe.baseline and probe.outcome.kind == "ok" and probe.outcome.measurement
    ]
    return (len(values), stdev(values) / fmean(values)) if len(values) > 1 else None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes the file atomically: whoever reads it sees the old or the new one, whole."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def find_probe(probes: Sequence[Probe], key: str) -> Probe:
    """The last ``ok`` probe of the setup called ``key``.

    Raises:
        UsageError: No such setup, or none of its probes was ``ok``.
    """
    named = [probe for probe in probes if probe.setup.key == key]
    good = [probe for probe in named if probe.outcome.kind == "ok"]
    if good:
        return good[-1]
    if named:
        outcome = named[-1].outcome
        raise UsageError(f"{key} was never measured: {outcome.kind}. {outcome.reason}")
    known = "\n".join(sorted({f"  {probe.setup.key}" for probe in probes}))
    raise UsageError(f"The run has no setup {key!r}. It has:\n{known}")
