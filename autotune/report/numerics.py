"""The part of the result on numerics: what was read, what it means, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from autotune.numerics.findings import Communication, Missing, ScaleChoice, WireErrors
from autotune.numerics.reduction import sentence
from autotune.report.evidence import Evidence
from autotune.report.phases import numerics_cost
from autotune.report.plain import plain
from autotune.report.skips import count_skips
from autotune.report.wires import graded
from autotune.report.words import words


def numerics_part(found: Evidence) -> dict[str, Any] | None:
    """As JSON types; None for a run without findings, such as one of an older version."""
    if not found.findings:
        return None
    skips = count_skips(found)
    part: dict[str, Any] = plain(
        {
            "target": dict(found.target),
            "communication": list(_communication(found)),
            "wires": list(_wires(found)),
            "loss_scale": [
                asdict(item) for item in found.findings.values() if isinstance(item, ScaleChoice)
            ],
            "skips": skips,
            "missing": [
                {"name": name, "reason": item.reason}
                for name, item in found.findings.items()
                if isinstance(item, Missing)
            ],
            "cost": numerics_cost(found),
            "words": words(found, skips),
        }
    )
    return part


def _communication(found: Evidence) -> Iterator[dict[str, Any]]:
    """One entry for each way of reducing."""
    for name, item in found.findings.items():
        if isinstance(item, Communication):
            yield {"reducer": name.removeprefix("communication "), **asdict(item)}


def _wires(found: Evidence) -> Iterator[dict[str, Any]]:
    """One entry for each wire dtype, micro-batch and world size."""
    for errors in found.findings.values():
        if not isinstance(errors, WireErrors):
            continue
        for item in errors.predictions:
            grade = graded(found, item)
            yield {
                "micro_batch": errors.micro_batch,
                "world_size": item.world_size,
                "micro_batches": errors.micro_batches,
                "wire": item.wire,
                "ring": item.ring,
                "tree": item.tree,
                "fp32_accumulate": item.fp32_accumulate,
                "grade": grade,
                "text": sentence(item, grade),
            }
