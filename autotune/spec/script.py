"""The user's training script: its command line, from the sweep file or from behind ``--``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError
from autotune.placeholders import PLACEHOLDERS, unknown
from autotune.spec.faults import closest
from autotune.workload import Script, ScriptLauncher

MODULE = "-m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A script that stands on autotune's own command line, behind ``--``.

    Attributes:
        words: The script and its arguments.
        folder: Where autotune was started.
    """

    words: tuple[str, ...]
    folder: Path


def read_script(
    line: str | None, launcher: ScriptLauncher, command: Command | None, home: Path
) -> Script:
    """The script that probes run.

    Args:
        line: The sweep file's command.
        launcher: What starts it.
        command: The one from behind ``--``.
        home: Folder from which the sweep file's command starts.

    Raises:
        UsageError: There is no command or there are two, its script is no file, or a placeholder
            is unknown.
    """
    if line is not None and command is not None:
        raise UsageError(
            "The sweep file names a workload.script.command and another stands after --; keep one."
        )
    folder = home if command is None else command.folder
    words = _split(line) if line is not None else command.words if command is not None else ()
    if not words:
        raise UsageError(
            "workload.script has no command; put it after --, as in `autotune sweep FILE -- "
            "train.py --deepspeed {deepspeed_config}`, or into the sweep file as command."
        )
    _check_placeholders(words)
    _check_script(words, folder)
    return Script(command=words, launcher=launcher, folder=str(folder))


def _split(line: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise UsageError(
            f"workload.script.command cannot be split into words ({error}); close its quotes."
        ) from error


def _check_placeholders(words: Sequence[str]) -> None:
    for name in unknown(words):
        meant = closest(name, PLACEHOLDERS)
        hint = f" did you mean {{{meant}}}?" if meant else ""
        known = ", ".join(f"{{{item}}}" for item in PLACEHOLDERS)
        raise UsageError(
            f"The command holds {{{name}}}, which is no placeholder;{hint} allowed: {known}; or "
            f"{{{{{name}}}}} for the braces themselves."
        )


def _check_script(words: Sequence[str], folder: Path) -> None:
    """A first word that is no script is mostly a launcher."""
    first = words[0]
    if first == MODULE:
        if len(words) < 2:
            raise UsageError("The command ends after -m; name the module that trains.")
        return
    if not (folder / first).is_file():
        raise UsageError(
            f"The command starts with {first!r}, which is no file in {folder}; give the training "
            "script itself, without python, torchrun or accelerate launch, or -m and a module."
        )
