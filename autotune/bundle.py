"""Several rendered files as one text, so that a probe of a script keeps all that it ran with."""

from __future__ import annotations

import json
from collections.abc import Mapping

KEY = "files"


def bundle(files: Mapping[str, str]) -> str:
    """One text that holds the files, by name."""
    return json.dumps({KEY: dict(files)}, indent=1)


def unbundle(text: str) -> dict[str, str]:
    """The files of a text that `bundle` made."""
    files: dict[str, str] = json.loads(text)[KEY]
    return files
