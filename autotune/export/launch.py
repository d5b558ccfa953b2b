"""A folder that starts training: the configuration, its environment and a launch script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from autotune.backends import backend_of
from autotune.export.ddp import export_ddp
from autotune.export.deepspeed import export_deepspeed
from autotune.export.exported import Exported, Note, Provenance
from autotune.export.fsdp import export_fsdp
from autotune.outcome import Probe
from autotune.render import render
from autotune.setup import Backend

Dialect = Callable[[Probe, Provenance, Path | None], Exported]
CONFIGURATIONS: Mapping[Backend, Dialect] = {
    "deepspeed": export_deepspeed,
    "fsdp": export_fsdp,
    "ddp": export_ddp,
}
SCRIPTS = ("launch.sh", "launch.env")


def export_launch(probe: Probe, provenance: Provenance, templates: Path | None) -> Exported:
    """The backend's own export, with ``launch.sh`` and ``launch.env`` beside it."""
    configuration = CONFIGURATIONS[probe.setup.backend](probe, provenance, templates)
    variables = {
        **probe.setup.to_dict(),
        "file_name": backend_of(probe.setup).file_name,
        "provenance": provenance.lines(),
    }
    scripts = {name: render(f"launch/{name}.j2", variables, templates) for name in SCRIPTS}
    notes = tuple(_better(note) for note in configuration.notes)
    return Exported({**configuration.files, **scripts}, notes)


def _better(note: Note) -> Note:
    """What a configuration cannot say, the environment often can."""
    if note.status != "cannot be expressed":
        return note
    if note.knob == "precision":
        return Note(note.knob, "expressed", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE in launch.env")
    variable = f"AUTOTUNE_{note.knob.upper()}"
    return Note(note.knob, "approximated", f"{variable} in launch.env, for your script to obey")
