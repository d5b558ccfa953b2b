"""What an export is: files, and what they cannot say."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.errors import UsageError

NoteStatus = Literal["expressed", "approximated", "cannot be expressed"]


@dataclass(frozen=True, slots=True)
class Note:
    """How well a dialect says one knob.

    Attributes:
        knob: Name of the knob, as in the sweep file.
        status: Whether the exported files carry the knob's value.
        text: Where the value is written, or what is left to do by hand.
    """

    knob: str
    status: NoteStatus
    text: str


def expressed(knob: str, text: str) -> Note:
    """The files say the knob's value, at the place ``text``."""
    return Note(knob, "expressed", text)


def approximated(knob: str, text: str) -> Note:
    """The files say something near it, or leave a step to the user."""
    return Note(knob, "approximated", text)


def inexpressible(knob: str, text: str) -> Note:
    """The files cannot say it; ``text`` is what to do instead."""
    return Note(knob, "cannot be expressed", text)


def summary(notes: Iterable[Note]) -> Iterator[str]:
    """The notes in lines for a file's header: what is left to do is said in full."""
    found = list(notes)
    said = [note.knob for note in found if note.status == "expressed"]
    if said:
        yield f"expressed: {', '.join(said)}"
    for note in found:
        if note.status != "expressed":
            yield f"{note.status}: {note.knob}. {note.text}"


@dataclass(frozen=True, slots=True)
class Exported:
    """Files to write, and a note for every knob of the setup.

    Attributes:
        files: Text by file name.
        notes: In the order of the knobs; a knob that the setup does not have has none.
    """

    files: Mapping[str, str]
    notes: tuple[Note, ...]


def write(exported: Exported, folder: Path, *, force: bool = False) -> list[Path]:
    """Writes the files into ``folder``, each of them atomically.

    A text that starts with ``#!`` becomes executable.

    Args:
        exported: What to write.
        folder: Made if it does not exist.
        force: Whether files that are there and differ are replaced.

    Returns:
        The paths written.

    Raises:
        UsageError: A file is there, differs and ``force`` is off (then nothing is written), or
            the folder cannot be written to.
    """
    texts = {folder / name: text.encode() for name, text in exported.files.items()}
    try:
        differing = [path for path, text in texts.items() if _differs(path, text)]
        if differing and not force:
            names = ", ".join(str(path) for path in differing)
            raise UsageError(
                f"{names}: exists and differs; use --force to replace, or another folder."
            )
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            _replace(path, text)
    except OSError as error:
        raise UsageError(f"Cannot export to {folder}: {error}.") from error
    return list(texts)


def _differs(path: Path, text: bytes) -> bool:
    return path.exists() and (not path.is_file() or path.read_bytes() != text)


def _replace(path: Path, text: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(text)
        if text.startswith(b"#!"):
            unfinished.chmod(unfinished.stat().st_mode | 0o111)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
