"""Writes the JSON schema that editors read: ``python -m autotune.spec.schema``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from autotune.errors import UsageError
from autotune.spec.json_schema import json_schema

SCHEMA_FILE = Path("sweeps/sweep.schema.json")


def schema_text() -> str:
    """The text of the schema file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def write_schema(folder: Path) -> Path:
    """Writes ``sweeps/sweep.schema.json`` under ``folder``, the repository's root.

    Raises:
        UsageError: It has no folder ``sweeps``.
    """
    file = folder / SCHEMA_FILE
    if not file.parent.is_dir():
        raise UsageError(
            f"{file.parent} is not a folder; run this in the root of autotune's repository"
        )
    file.write_text(schema_text(), encoding="utf-8")
    return file


def main() -> int:
    """Writes the schema under the current folder. Returns the exit code."""
    try:
        sys.stderr.write(f"wrote {write_schema(Path())}\n")
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
