"""Asks the installed consumers of configuration files what they make of them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import EnvironmentFailedError

LOG_TAIL = 2000
DEADLINE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Question:
    """What to read.

    Attributes:
        reader: Name of a reader of `autotune.consumer.readers`.
        folder: Folder that holds the files; absolute.
        options: Arguments of the reader, as JSON types.
    """

    reader: str
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the consumer said.

    Attributes:
        effective: What it made of the files: the value of each knob that it determines.
        refused: Its words, where it refused them.
        missing: Packages that are not installed, without which nothing could be asked.
        versions: Versions of those that were asked.
    """

    effective: Mapping[str, Any] = field(default_factory=dict)
    refused: str | None = None
    missing: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


def consult(questions: Sequence[Question]) -> list[Answer]:
    """One answer for each question. Nothing of a consumer is imported into this process.

    Raises:
        EnvironmentFailedError: The process that asks the consumers died.
    """
    asked = [
        {"reader": item.reader, "folder": str(item.folder), "options": dict(item.options)}
        for item in questions
    ]
    with tempfile.TemporaryDirectory(prefix="autotune-consult-") as name:
        paths = [Path(name) / "questions.json", Path(name) / "answers.json"]
        paths[0].write_text(json.dumps(asked), encoding="utf-8")
        _run([sys.executable, "-m", "autotune.consumer", *map(str, paths)], paths[1])
        found = json.loads(paths[1].read_text(encoding="utf-8"))
    return [Answer(**{**item, "missing": tuple(item.get("missing", ()))}) for item in found]


def _run(command: Sequence[str], answers: Path) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=DEADLINE_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailedError(
            f"The configuration readers gave no answer within {DEADLINE_SECONDS:g} s."
        ) from error
    if done.returncode != 0 or not answers.exists():
        tail = done.stderr[-LOG_TAIL:]
        raise EnvironmentFailedError(f"The configuration readers died; their last words:\n{tail}")
