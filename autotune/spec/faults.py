"""A fault of a sweep file: where it stands and what is wrong, in the user's words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Place = tuple[str | int, ...]
"""Keys and list positions that lead to a value: ``("space", "precision", 1)``."""

MOST_SHOWN = 50  # a list longer than this means that the file is something else altogether
LONGEST_VALUE = 60
PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]{1,60}")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong in a file.

    Attributes:
        line: Line in the file, from 1.
        place: The value it is about; empty for the whole file.
        words: What is wrong, the value, what is allowed.
    """

    line: int
    place: Place
    words: str


def report(source: str, faults: Iterable[Fault]) -> str:
    """All faults in the order of the file, one a line: ``path:line: where: what``."""
    ordered = sorted(faults, key=lambda fault: fault.line)
    lines = [_line(source, fault) for fault in ordered[:MOST_SHOWN]]
    if len(ordered) > MOST_SHOWN:
        lines.append(f"{source}: and more; mend these first")
    return "\n".join(lines)


def _line(source: str, fault: Fault) -> str:
    where = f"{show_place(fault.place)}: " if fault.place else ""
    return f"{source}:{fault.line}: {where}{fault.words}"


def show_place(place: Place) -> str:
    """``space.precision[1]``."""
    text = ""
    for step in place:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if PLAIN_KEY.fullmatch(step) else shorten(step))
    return text


def shorten(value: Any) -> str:
    """A value on one line, as it would stand in the file; text in quotes."""
    if isinstance(value, dict):
        return "a mapping" if value else "{}"
    if isinstance(value, list):
        return "a list" if value else "[]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value[:LONGEST_VALUE] if isinstance(value, str) else value)
    return text if len(text) <= LONGEST_VALUE + 2 else text[:LONGEST_VALUE] + "..."


def closest(word: str, known: Sequence[str]) -> str | None:
    """The known word that was probably meant."""
    found = difflib.get_close_matches(word[:LONGEST_VALUE].lower(), known, n=1)
    return found[0] if found else None
