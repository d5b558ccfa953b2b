"""An exported launch script, run with a recorder in place of Python."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.export import export, subject_of, write
from tests.build import make_probe, make_setup
from tests.unit.test_export import PROVENANCE

HOSTILE = [
    "",
    "two words",
    "new\nline\n",
    "$(touch pwned)",
    "`touch pwned`",
    "$HOME ${PATH}",
    "single ' quote",
    'double " quote',
    "back\\slash",
    "*",
    "--",
    "--standalone",
    "-h",
    "; touch pwned",
    "é \u2028",
]


def exported(folder: Path, to: str = "launch", **knobs: Any) -> Path:
    """The folder with an export of a setup; its launch.sh."""
    setup = make_setup(**knobs)
    probe = replace(make_probe(0, setup), rendered="{}\n")
    provenance = replace(PROVENANCE, setup_key=setup.key)
    write(export(subject_of(probe, provenance), to), folder)
    return folder / "launch.sh"


def script(folder: Path, name: str = "train it.py") -> str:
    """An empty script in the folder; its name."""
    (folder / name).write_text("", encoding="utf-8")
    return name


@dataclass(frozen=True)
class Recorder:
    """Stands for Python in a folder and writes down how it was called.

    Attributes:
        folder: What is run is run in it.
    """

    folder: Path

    def __post_init__(self) -> None:
        self.python.write_text(
            '#!/bin/sh\nprintf "%s\\0" "$@" > "$RECORD"\nenv -0 > "$RECORD.env"\n'
        )
        self.python.chmod(0o755)

    @property
    def python(self) -> Path:
        return self.folder / "python"

    def run(self, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command, with nothing in its environment but what is given."""
        base = {"PATH": os.environ["PATH"], "RECORD": str(self.folder / "record")}
        return subprocess.run(
            words,
            env={**base, "PYTHON": str(self.python), **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=30,
        )


def recorded(folder: Path) -> list[str]:
    """Arguments of the last call."""
    return (folder / "record").read_text(encoding="utf-8").split("\0")[:-1]


def recorded_environment(folder: Path) -> dict[str, str]:
    """Environment of the last call."""
    items = (folder / "record.env").read_text(encoding="utf-8").split("\0")[:-1]
    return dict(item.split("=", 1) for item in items)
