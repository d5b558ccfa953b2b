"""A configuration file with the place of everything in it. Nothing in it is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import hjson
import yaml

from autotune.configs.texts import YAML_ENDINGS, is_strict, read_text, syntax
from autotune.configs.understood import Refused
from autotune.lint.hjson_places import BLANK, hjson_places
from autotune.lint.places import Entry, KeyPath, Place, Span, locate, paths_of
from autotune.lint.yaml_places import yaml_data

Format = Literal["json", "hjson", "yaml"]


@dataclass(frozen=True, slots=True)
class Document:
    """A file that holds a mapping.

    Attributes:
        text: Its text.
        format: How it was read; ``hjson`` is JSON with comments, trailing commas or bare words.
        data: The mapping, of JSON types; keys and values that are none are texts.
        entries: Place of each key and item, the last one where a key stands twice.
        twice: Keys that stand twice in one mapping, each time but the last.
    """

    text: str
    format: Format
    data: dict[str, Any]
    entries: Mapping[KeyPath, Entry]
    twice: tuple[Entry, ...]

    def place(self, path: KeyPath) -> Place:
        """Where a key stands; of one that does not stand anywhere, the nearest block around it."""
        while path:
            entry = self.entries.get(path)
            if entry is not None:
                return locate(self.text, entry.key or entry.value)
            path = path[:-1]
        return Place(1, 1, 1, 1)

    def written(self, span: Span) -> str:
        """A piece of the text."""
        return self.text[span.start : span.end]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file in which there is nothing to look at.

    Attributes:
        why: One line, without the name of the file.
    """

    why: str


def read_document(path: Path) -> Document | Unreadable:
    """Reads YAML by its ending, and everything else as JSON, Hjson or YAML."""
    text = read_text(path)
    if isinstance(text, Refused):
        return Unreadable(text.reasons[0].removeprefix(f"{path} "))
    return parse_document(text, is_yaml=path.suffix.lower() in YAML_ENDINGS)


def parse_document(text: str, *, is_yaml: bool) -> Document | Unreadable:
    """A text as a document."""
    try:
        if is_yaml or not _braced(text):
            data, entries = yaml_data(text)
            return _document(text, "yaml", data, entries)
        data = json.loads(text) if is_strict(text) else hjson.loads(text)
        entries = hjson_places(text)
    except RecursionError:
        return Unreadable("nested too deeply to be a configuration")
    except (ValueError, OverflowError, yaml.YAMLError) as error:
        return Unreadable(syntax(error))
    return _document(text, "json" if is_strict(text) else "hjson", data, entries)


def _braced(text: str) -> bool:
    blank = BLANK.match(text)
    return blank is not None and text.startswith("{", blank.end())


def _document(text: str, how: Format, data: Any, entries: list[Entry]) -> Document | Unreadable:
    if not isinstance(data, dict) or not data:
        return Unreadable("holds no mapping of keys to values")
    plain = _plain(data)
    known = set(paths_of(plain))
    last = {entry.path: entry for entry in entries if entry.path in known}
    count = Counter(entry.path for entry in entries if entry.key is not None)
    twice = tuple(
        entry
        for entry in entries
        if count[entry.path] > 1 and last.get(entry.path, entry) is not entry
    )
    return Document(text, how, plain, last, _outermost(twice))


def _outermost(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Without those that stand inside of another one."""
    return tuple(
        entry
        for entry in entries
        if not any(
            other is not entry
            and other.value.start <= entry.whole.start
            and entry.whole.end <= other.value.end
            for other in entries
        )
    )


def _plain(value: Any) -> Any:
    """JSON types; a date or a key that is a number as its text."""
    if isinstance(value, dict):
        return {_name(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _name(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return key if isinstance(key, str) else str(key)
