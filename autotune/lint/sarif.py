"""The lint of files as SARIF 2.1.0, which code review tools read.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autotune.lint.finding import Finding, place_of
from autotune.lint.linted import Linted, Skipped
from autotune.lint.places import dotted
from autotune.lint.registry import RULES
from autotune.lint.rules import Level, Rule

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"
LEVELS: dict[Level, str] = {"error": "error", "warning": "warning", "info": "note"}
ROOT = "%SRCROOT%"


def sarif(items: Sequence[Linted | Skipped], *, tool_version: str, folder: Path) -> dict[str, Any]:
    """One run with every rule and every finding.

    Args:
        items: The files after the lint.
        tool_version: Of autotune.
        folder: Where names of files start.
    """
    positions = {name: position for position, name in enumerate(RULES)}
    results = [
        _result(item, finding, positions[finding.rule.id], folder)
        for item in items
        if isinstance(item, Linted)
        for finding in item.findings
    ]
    skipped = [_notification(item, folder) for item in items if isinstance(item, Skipped)]
    driver = {
        "name": "autotune lint",
        "semanticVersion": tool_version,
        "rules": [_rule(rule) for rule in RULES.values()],
    }
    invocation: dict[str, Any] = {"executionSuccessful": not skipped}
    if skipped:
        invocation["toolExecutionNotifications"] = skipped
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    affected = ", ".join(f"{name} {spec}" for name, spec in rule.versions.items())
    about = f"{rule.why} Source: {rule.source}."
    if affected:
        about += f" Affected: {affected}."
    return {
        "id": rule.id,
        "name": "".join(part.capitalize() for part in rule.id.split("-")),
        "shortDescription": {"text": rule.what},
        "fullDescription": {"text": about},
        "help": {"text": f"{rule.what} {about} Fix: {rule.fix}"},
        "defaultConfiguration": {"level": LEVELS[rule.level]},
    }


def _result(item: Linted, finding: Finding, position: int, folder: Path) -> dict[str, Any]:
    place = place_of(item.document, finding)
    region = {
        "startLine": place.line,
        "startColumn": place.column,
        "endLine": place.end_line,
        "endColumn": place.end_column,
    }
    key = dotted(finding.key)
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": _artifact(item.path, folder), "region": region}
    }
    if key:
        location["logicalLocations"] = [{"fullyQualifiedName": key, "kind": "member"}]
    return {
        "ruleId": finding.rule.id,
        "ruleIndex": position,
        "level": LEVELS[finding.level],
        "message": {"text": f"{finding.text}. {finding.rule.fix}"},
        "locations": [location],
        "partialFingerprints": {"key/v1": _fingerprint(finding.rule.id, key)},
    }


def _fingerprint(rule: str, key: str) -> str:
    """The same finding in another state of the file."""
    return hashlib.sha256(f"{rule} {key}".encode()).hexdigest()[:32]


def _artifact(path: Path, folder: Path) -> dict[str, str]:
    whole = path.resolve()
    try:
        inside = whole.relative_to(folder.resolve())
    except ValueError:
        return {"uri": whole.as_uri()}
    return {"uri": quote(inside.as_posix()), "uriBaseId": ROOT}


def _notification(item: Skipped, folder: Path) -> dict[str, Any]:
    location = {"physicalLocation": {"artifactLocation": _artifact(item.path, folder)}}
    return {
        "level": "error",
        "message": {"text": f"{item.path}: {item.why}"},
        "locations": [location],
    }
