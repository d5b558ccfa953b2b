"""Compares a setup with what the consumers of its exported files make of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.export.exported import Note
from autotune.setup import Setup


@dataclass(frozen=True, slots=True)
class Difference:
    """A knob that the files should say and do not.

    Attributes:
        knob: Name of the knob.
        wanted: Its value in the setup, as JSON types.
        found: What the consumer made of the files; None where it determines nothing.
    """

    knob: str
    wanted: Any
    found: Any


def compare(
    setup: Setup, notes: Sequence[Note], effective: Mapping[str, Any]
) -> Iterator[Difference]:
    """Knobs that a note calls expressed, and that the consumer does not see so.

    A knob that is approximated or cannot be expressed makes no promise. A switch that is off,
    where the consumer has no word for it, is not a difference.

    Args:
        setup: What was exported.
        notes: How well the files say each knob.
        effective: Value of every knob that the consumer determines.
    """
    knobs = setup.to_dict()
    for note in notes:
        if note.status != "expressed":
            continue
        wanted, found = knobs[note.knob], effective.get(note.knob)
        if found != wanted and not (found is None and wanted is False):
            yield Difference(note.knob, wanted, found)
