"""Changes to the text of a configuration file, which leave everything else as it was written."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import yaml

from autotune.lint.document import Document, Unreadable, parse_document
from autotune.lint.places import Entry, KeyPath, Span, get, has

BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
BEFORE_YAML = re.compile(r"(?:\s+|#[^\n]*|---)*")


@dataclass(frozen=True, slots=True)
class Edit:
    """One change.

    Attributes:
        kind: ``remove`` takes the key out, ``rename`` gives it the name ``value``, ``replace`` the
            value ``value``; ``insert`` adds the key with it; ``first`` takes all but the last of
            equal keys out.
        path: The key.
        value: A name, or the value as JSON types.
    """

    kind: Literal["remove", "rename", "replace", "insert", "first"]
    path: KeyPath
    value: Any = None


def remove(*path: str | int) -> Edit:
    """Takes a key out."""
    return Edit("remove", path)


def rename(path: KeyPath, name: str) -> Edit:
    """Gives a key another name."""
    return Edit("rename", path, name)


def put(path: KeyPath, value: Any) -> Edit:
    """Sets the value of a key that stands in the file."""
    return Edit("replace", path, value)


def insert(path: KeyPath, value: Any) -> Edit:
    """Adds a key to a mapping that stands in the file."""
    return Edit("insert", path, value)


def apply_edits(document: Document, edits: Iterable[Edit]) -> Document:
    """The document after the edits that are possible, one after the other.

    An edit is left out where it has nothing to change, and where the text that it makes does not
    say exactly what it should.
    """
    for edit in edits:
        document = _applied(document, edit) or document
    return document


def _applied(document: Document, edit: Edit) -> Document | None:
    wanted = _wanted(document, edit)
    if wanted is None:
        return None
    text = _text(document, edit)
    if text is None:
        return None
    found = parse_document(text, is_yaml=document.format == "yaml")
    if isinstance(found, Unreadable) or found.data != wanted:
        return None
    return replace(found, format="hjson") if document.format == "hjson" else found


def _wanted(document: Document, edit: Edit) -> dict[str, Any] | None:
    """The data after the edit; None where it changes nothing."""
    data = copy.deepcopy(document.data)
    inner, name = get(data, edit.path[:-1]), edit.path[-1]
    if not isinstance(inner, dict) or not isinstance(name, str):
        return None
    if (edit.kind == "insert") is (name in inner):
        return None
    if edit.kind in ("insert", "replace"):
        inner[name] = edit.value
    elif edit.kind == "remove":
        del inner[name]
    elif edit.kind == "rename":
        if edit.value in inner:
            return None
        inner[edit.value] = inner.pop(name)
    return data


def _text(document: Document, edit: Edit) -> str | None:
    if edit.kind == "insert":
        return _inserted(document, edit)
    if edit.kind == "first":
        entry = next((item for item in document.twice if item.path == edit.path), None)
        return None if entry is None else _removed(document, entry)
    entry = document.entries.get(edit.path)
    if entry is None or entry.key is None:
        return None
    if edit.kind == "remove":
        return _removed(document, entry)
    if edit.kind == "rename":
        return _spliced(document.text, entry.key, _key(document, entry.key, edit.value))
    return _spliced(document.text, entry.value, _value(document, edit.value))


def _spliced(text: str, span: Span, new: str) -> str:
    return text[: span.start] + new + text[span.end :]


def _key(document: Document, old: Span, name: str) -> str:
    quote = document.text[old.start]
    if quote in "\"'":
        return f"{quote}{name}{quote}"
    return name if BARE.fullmatch(name) else json.dumps(name)


def _value(document: Document, value: Any) -> str:
    if document.format != "yaml":
        return json.dumps(value)
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def _removed(document: Document, entry: Entry) -> str:
    """Without an entry, its comma and what is left of its lines."""
    text, span = document.text, entry.whole
    if document.format == "yaml" and not _in_flow(document, entry):
        if _alone(document, entry):
            outer = document.entries.get(entry.path[:-1])
            return "{}\n" if outer is None else _emptied(text, outer)
        return _without_lines(text, span)
    end = _after(text, span.end)
    if text.startswith(",", end):
        return _without_lines(text, Span(span.start, end + 1))
    before = len(text[: span.start].rstrip())
    if before and text[before - 1] == ",":
        text = text[: before - 1] + text[before:]
        span = Span(span.start - 1, span.end - 1)
    return _without_lines(text, span)


def _emptied(text: str, outer: Entry) -> str:
    """A block of YAML without its only key."""
    return f"{text[: outer.value.start].rstrip()} {{}}{text[outer.value.end :]}"


def _alone(document: Document, entry: Entry) -> bool:
    siblings = get(document.data, entry.path[:-1])
    return isinstance(siblings, dict) and len(siblings) == 1 and entry not in document.twice


def _in_flow(document: Document, entry: Entry) -> bool:
    """Whether braces stand around an entry of YAML."""
    outer = document.entries.get(entry.path[:-1])
    if outer is not None:
        return document.text.startswith("{", outer.value.start)
    blank = BEFORE_YAML.match(document.text)
    return blank is not None and document.text.startswith("{", blank.end())


def _after(text: str, index: int) -> int:
    while text[index : index + 1].isspace():
        index += 1
    return index


def _without_lines(text: str, span: Span) -> str:
    """Cuts a piece out, with its lines if nothing else stands on them."""
    start = text.rfind("\n", 0, span.start) + 1
    end = text.find("\n", span.end)
    end = len(text) if end < 0 else end + 1
    if not text[start : span.start].strip() and not text[span.end : end].strip():
        return text[:start] + text[end:]
    before, after = text[: span.start], text[span.end :].lstrip(" \t")
    closes = after.startswith(("}", "]"))
    return (before.rstrip(" \t") if closes else before) + after


def _inserted(document: Document, edit: Edit) -> str | None:
    """A key before the first one of its mapping, on a line of its own where that has one."""
    parent, name = edit.path[:-1], str(edit.path[-1])
    first = _first(document, parent)
    if first is None or first.key is None:
        return None
    text, at = document.text, first.key.start
    line = text[text.rfind("\n", 0, at) + 1 : at]
    if document.format == "yaml" and not _in_flow(document, first):
        if line.strip():
            return None
        written = f"{_bare(name)}: {_value(document, edit.value)}\n{line}"
    else:
        key = name if text[at] not in "\"'" else f"{text[at]}{name}{text[at]}"
        gap = f"\n{line}" if not line.strip() else " "
        written = f"{key}: {_value(document, edit.value)},{gap}"
    return text[:at] + written + text[at:]


def _bare(name: str) -> str:
    return name if BARE.fullmatch(name) else json.dumps(name)


def _first(document: Document, parent: KeyPath) -> Entry | None:
    inner = [
        entry
        for path, entry in document.entries.items()
        if path[:-1] == parent and entry.key is not None and has(document.data, path)
    ]
    return min(inner, key=lambda entry: entry.whole.start, default=None)
