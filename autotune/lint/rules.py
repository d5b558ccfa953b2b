"""A rule: what it finds, why that matters, who says so, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the worst to the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule.

    Attributes:
        id: Stable name.
        level: ``error``: it stops, or trains wrong. ``warning``: it is not what the file seems to
            say, or costs. ``info``: worth to know.
        what: What is found, as a sentence.
        why: Why it matters.
        source: Where that was read or seen: project, version, file or address.
        fix: What to do.
        versions: Affected versions by package, as in ``>=0.18.3,<=0.19.8``; every version where a
            package is absent.
        fixable: Whether `--fix` can do it.
    """

    id: str
    level: Level
    what: str
    why: str
    source: str
    fix: str
    versions: Mapping[str, str] = field(default_factory=dict)
    fixable: bool = False
