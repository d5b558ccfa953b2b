"""What an export is: files, and what they cannot say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.errors import UsageError
from autotune.render import to_comment

NoteStatus = Literal["expressed", "approximated", "cannot be expressed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where an exported setup comes from.

    Attributes:
        run: Name of the run.
        setup_key: Key of the setup.
        versions: Versions that it was measured with, by library.
        date: ISO 8601 time of the measurement, so that exporting again writes the same files.
        verdict: What the run says of the setup.
    """

    run: str
    setup_key: str
    versions: Mapping[str, str]
    date: str
    verdict: str

    def lines(self) -> tuple[str, ...]:
        """It in a few lines for people."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"Exported by autotune from run {self.run}; verdict: {self.verdict}.",
            f"Setup: {self.setup_key}",
            f"Measured at {self.date} with {versions}",
        )

    def comment(self) -> str:
        """It as comment lines of Python or a shell."""
        return "".join(f"# {to_comment(line)}\n" for line in self.lines())


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
