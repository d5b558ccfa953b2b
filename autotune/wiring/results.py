"""Reads a run: its result, and the export of a setup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.report import build_result, write_json
from autotune.search import Store

RESULT = "result.json"


def open_run(folder: Path) -> Store:
    """An existing run.

    Raises:
        UsageError: The folder holds none, or one that never started.
    """
    store = Store(folder, create=False)
    if "baseline" not in store.about:
        raise UsageError(f"{folder} holds a run that never started; sweep it first.")
    return store


def result_of(store: Store) -> dict[str, Any]:
    """The result of the run so far, as in the result file."""
    run = "RUN" if store.folder is None else str(store.folder)
    return build_result(store.about["name"], store.probes(), store.about, store.findings(), run=run)


def write_result(store: Store) -> dict[str, Any]:
    """Writes ``result.json`` into the run, if it has a folder, and returns it."""
    result = result_of(store)
    if store.folder is not None:
        write_json(store.folder / RESULT, result)
    return result
