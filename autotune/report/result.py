"""The result file, schema 1: what other programs may rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from autotune.errors import UsageError
from autotune.numerics.findings import Finding
from autotune.outcome import Probe
from autotune.report.advice import advise
from autotune.report.evidence import gather
from autotune.report.numerics import numerics_part
from autotune.report.phases import confirmation_part, race_part, screening_part, spent_part
from autotune.report.rows import measurement_rows, setup_rows
from autotune.report.verdict import verdict_part

SCHEMA = 1
NO_FINDINGS: Mapping[str, Finding] = MappingProxyType({})


def build_result(
    name: str,
    probes: Sequence[Probe],
    about: Mapping[str, Any],
    findings: Mapping[str, Finding] = NO_FINDINGS,
    *,
    run: str = "RUN",
) -> dict[str, Any]:
    """The result of a run so far, as JSON types.

    Args:
        name: The run's name.
        probes: Every probe of it.
        about: What the store keeps with the run: ``baseline``, ``removed``, ``planned``,
            ``fingerprint``, and as far as the run got ``margin``, ``spent``, ``race``,
            ``confirmations``, ``cuts``, ``notes``, ``own``, ``replay``, ``target``, ``gates``.
        findings: What its readings came to, by name.
        run: The run in commands that warnings advise, such as ``runs/mine``.

    Returns:
        Keys as in the result file. Before a confirmation ended ``verdict`` is ``unconfirmed``
        and ``interval`` is null. Without findings ``numerics`` is null.
    """
    found = gather(probes, about, findings)
    return {
        "schema": SCHEMA,
        "name": name,
        **verdict_part(found),
        "screening": screening_part(found),
        "race": race_part(found),
        "confirmation": confirmation_part(found),
        "numerics": numerics_part(found),
        "setups": setup_rows(found),
        "removed": about["removed"],
        "planned": about["planned"],
        "spent": spent_part(found),
        "cuts": list(about.get("cuts", [])),
        "notes": list(about.get("notes", [])),
        "own": about.get("own"),
        "fingerprint": about["fingerprint"],
        "warnings": [warning.to_dict() for warning in advise(found, run)],
        "replay": bool(about.get("replay", False)),
        "measurements": measurement_rows(probes),
    }


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes the file atomically: whoever reads it sees the old or the new one, whole."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
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
