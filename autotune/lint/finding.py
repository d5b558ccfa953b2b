"""What a rule found in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.lint.document import Document
from autotune.lint.edits import Edit
from autotune.lint.places import KeyPath, Place, Span, locate, paths_of
from autotune.lint.registry import RULES
from autotune.lint.rules import Level, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding.

    Attributes:
        rule: The rule.
        key: Where; the root of the file for what is absent at its top level.
        text: What is wrong here, with the value.
        edits: What repairs it, all of them or none.
        level: Of this case, where it is not the rule's.
        inert: Whether it says that nobody reads the key, which the consumer can confirm.
        confirmed: Whether the installed consumer did; None where it was not asked.
        span: The place in the text, where the key does not tell it.
    """

    rule: Rule
    key: KeyPath
    text: str
    edits: tuple[Edit, ...] = ()
    level: Level
    inert: bool = False
    confirmed: bool | None = None
    span: Span | None = None


def found(
    rule: str,
    key: KeyPath,
    text: str,
    *edits: Edit,
    level: Level | None = None,
    inert: bool = False,
) -> Finding:
    """A finding of a rule by its id."""
    item = RULES[rule]
    return Finding(
        rule=item, key=key, text=text, edits=edits, level=level or item.level, inert=inert
    )


def place_of(document: Document, finding: Finding) -> Place:
    """Where a finding stands."""
    if finding.span is not None:
        return locate(document.text, finding.span)
    return document.place(finding.key)


@dataclass(frozen=True, slots=True)
class About:
    """What the checks know besides the configuration.

    Attributes:
        auto: Whether transformers or accelerate complete it.
        strict: Whether it is strict JSON, or YAML that its consumer reads.
        versions: Versions of the consumers, as far as they are known.
    """

    auto: bool
    strict: bool
    versions: Mapping[str, str]


Check = Callable[[Mapping[str, Any], About], Iterator[Finding]]


def under(prefix: KeyPath, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Findings of a block that stands inside of a file."""
    for item in findings:
        edits = tuple(replace(edit, path=(*prefix, *edit.path)) for edit in item.edits)
        yield replace(item, key=(*prefix, *item.key), edits=edits)


def path_of(name: str, data: Mapping[str, Any]) -> KeyPath:
    """The path of a dotted name; keys with points in them count as one."""
    parts = tuple(name.split(".")) if name else ()
    known = {".".join(map(str, path)): path for path in paths_of(data)}
    return known.get(name, parts)
