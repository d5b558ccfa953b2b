"""The lint of files as JSON types, for ``--json`` and for the console."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autotune.lint.finding import Finding, place_of
from autotune.lint.kinds import TITLES
from autotune.lint.linted import Linted, Skipped, counts
from autotune.lint.places import dotted
from autotune.lint.rules import Rule

SCHEMA = 1


def report(items: Sequence[Linted | Skipped], versions: Mapping[str, str]) -> dict[str, Any]:
    """Everything that is known of the files. Keys may be added; none changes its meaning."""
    return {
        "schema": SCHEMA,
        "versions": dict(versions),
        "files": [_file(item) for item in items],
        "counts": counts(items),
    }


def _file(item: Linted | Skipped) -> dict[str, Any]:
    if isinstance(item, Skipped):
        return {"file": str(item.path), "kind": None, "error": item.why}
    return {
        "file": str(item.path),
        "kind": item.kind,
        "title": TITLES[item.kind],
        "error": None,
        "effects": [asdict(effect) for effect in item.effects],
        "findings": [finding_dict(item, finding) for finding in item.findings],
        "perturbed": {
            "done": item.liveness.done,
            "note": item.liveness.note,
            "files_tried": item.liveness.tried,
        },
    }


def finding_dict(item: Linted, finding: Finding) -> dict[str, Any]:
    """One finding with its place and the words of its rule."""
    place = place_of(item.document, finding)
    return {
        "rule": finding.rule.id,
        "level": finding.level,
        "key": dotted(finding.key),
        "line": place.line,
        "column": place.column,
        "end_line": place.end_line,
        "end_column": place.end_column,
        "text": finding.text,
        "why": finding.rule.why,
        "fix": finding.rule.fix,
        "source": finding.rule.source,
        "fixable": bool(finding.edits),
        "confirmed": finding.confirmed,
    }


def rules_report(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    """Rules as JSON types."""
    return [{**asdict(rule), "versions": dict(rule.versions)} for rule in rules]
