"""Reads a run: its result, and the export of a setup."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.export import Note, Provenance, subject_of
from autotune.export import export as export_setup
from autotune.export import write as write_export
from autotune.report import build_result, find_probe, write_json
from autotune.search import Store
from autotune.workload import Script

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


def export_run(
    store: Store, to: str, folder: Path, key: str | None, *, force: bool
) -> tuple[Sequence[Path], Sequence[Note]]:
    """Exports the winner, or the setup called ``key``, into ``folder``.

    Raises:
        UsageError: There is no winner yet, the setup was not measured, or does not fit ``to``.
    """
    result = result_of(store)
    wanted = key or result["winner"]
    if wanted is None:
        raise UsageError(f"{store.folder} has no winner yet; continue the sweep with --resume.")
    probe = find_probe(store.probes(), wanted)
    provenance = Provenance(
        run=result["name"],
        setup_key=wanted,
        versions=store.about["versions"],
        date=probe.finished_at,
        verdict=result["verdict"] if wanted == result["winner"] else "measured, not the winner",
    )
    templates = store.about["templates"]
    folder_of_templates = None if templates is None else Path(templates)
    script = script_of(store)
    exported = export_setup(subject_of(probe, provenance, folder_of_templates, script), to)
    return write_export(exported, folder, force=force), exported.notes


def script_of(store: Store) -> Script | None:
    """The script of a run, if that is what its probes ran."""
    model = store.about["fingerprint"]["workload"]["model"]
    if "command" not in model:
        return None
    return Script(command=tuple(model["command"]), launcher=model["launcher"])
