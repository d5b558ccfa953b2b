"""Where each key and value of a configuration file stands in its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a text, from the character ``start`` to before ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping with its value, or one item of a list.

    Attributes:
        path: Keys and positions from the root of the file.
        key: The key as it is written, quotes included; None for an item of a list.
        value: The value as it is written.
    """

    path: KeyPath
    key: Span | None
    value: Span

    @property
    def whole(self) -> Span:
        """Key and value."""
        return self.value if self.key is None else Span(self.key.start, self.value.end)


@dataclass(frozen=True, slots=True)
class Place:
    """A region of a file, lines and columns from 1; the end column is after the last character."""

    line: int
    column: int
    end_line: int
    end_column: int


def locate(text: str, span: Span) -> Place:
    """The lines and columns of a piece of a text."""
    line, column = _position(text, span.start)
    end_line, end_column = _position(text, span.end)
    return Place(line, column, end_line, end_column)


def _position(text: str, index: int) -> tuple[int, int]:
    before = text[:index]
    return before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1


def paths_of(data: Any, path: KeyPath = ()) -> list[KeyPath]:
    """Every path of parsed data below its root."""
    inner: list[tuple[str | int, Any]] = []
    if isinstance(data, Mapping):
        inner = list(data.items())
    elif isinstance(data, list):
        inner = list(enumerate(data))
    return [
        found for key, value in inner for found in ((*path, key), *paths_of(value, (*path, key)))
    ]


def get(data: Any, path: KeyPath) -> Any:
    """The value at a path; None where there is none."""
    for part in path:
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def has(data: Any, path: KeyPath) -> bool:
    """Whether a path of keys exists."""
    inner = get(data, path[:-1])
    return isinstance(inner, Mapping) and path[-1] in inner


def dotted(path: KeyPath) -> str:
    """As people write it, such as ``zero_optimization.stage`` or ``betas[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
