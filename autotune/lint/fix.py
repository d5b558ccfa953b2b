"""Repairs a file: the edits of its findings, until no finding can be repaired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.lint.checks import findings_in
from autotune.lint.document import Document
from autotune.lint.edits import apply_edits
from autotune.lint.finding import Finding
from autotune.lint.kinds import Kind
from autotune.lint.linted import Linted
from autotune.lint.places import KeyPath

ROUNDS = 8  # one repair may uncover another


@dataclass(frozen=True, slots=True)
class Fixed:
    """A file after its repair.

    Attributes:
        text: Its text; comments and order are as they were.
        repaired: Findings that are gone.
        left: Findings that could not be repaired though they have edits: the text around them did
            not allow it.
    """

    text: str
    repaired: tuple[Finding, ...]
    left: tuple[Finding, ...]


def fix(item: Linted, versions: Mapping[str, str]) -> Fixed:
    """Repairs what can be repaired.

    Args:
        item: A file after the lint.
        versions: Versions that it was linted for.
    """
    document, repaired = item.document, []
    kept = {_name(one) for one in item.findings}
    vetoed = {
        _name(one) for one in findings_in(document, item.kind, versions) if _name(one) not in kept
    }
    pending: list[Finding] = list(item.findings)
    for _ in range(ROUNDS):
        before = document
        for finding in pending:
            after = repair(document, finding)
            if after is not None:
                document = after
                repaired.append(finding)
        if document is before:
            break
        pending = [
            one for one in findings_in(document, item.kind, versions) if _name(one) not in vetoed
        ]
    left = tuple(one for one in _remaining(document, item.kind, versions, vetoed) if one.edits)
    return Fixed(document.text, tuple(repaired), left)


def repair(document: Document, finding: Finding) -> Document | None:
    """The document after all edits of a finding; None where one of them is not possible."""
    found = document
    for edit in finding.edits:
        after = apply_edits(found, [edit])
        if after is found:
            return None
        found = after
    return found if finding.edits else None


def _remaining(
    document: Document, kind: Kind, versions: Mapping[str, str], vetoed: set[tuple[str, KeyPath]]
) -> Iterable[Finding]:
    return (one for one in findings_in(document, kind, versions) if _name(one) not in vetoed)


def _name(finding: Finding) -> tuple[str, KeyPath]:
    return finding.rule.id, finding.key


def fixed_path(path: Path) -> Path:
    """Where the repaired file goes: ``NAME.fixed.EXT`` beside the original."""
    return path.with_name(f"{path.stem}.fixed{path.suffix}")
