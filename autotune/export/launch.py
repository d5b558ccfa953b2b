"""A folder that starts training: the configurations, their environment and a launch script."""

from __future__ import annotations

from autotune.export.accelerate import export_accelerate
from autotune.export.exported import Exported, Note
from autotune.export.own import export_own
from autotune.export.subject import Subject
from autotune.render import render

SCRIPTS = ("launch.sh", "launch.env")


def export_launch(subject: Subject) -> Exported:
    """The backend's own export and accelerate's, with ``launch.sh`` and ``launch.env`` beside."""
    configuration = export_own(subject)
    notes = tuple(_better(note) for note in configuration.notes)
    variables = {
        **subject.setup.to_dict(),
        "file_name": subject.file_name,
        "provenance": subject.header(notes),
    }
    scripts = {name: render(f"launch/{name}.j2", variables, subject.templates) for name in SCRIPTS}
    files = {**export_accelerate(subject).files, **configuration.files, **scripts}
    return Exported(files, notes)


def _better(note: Note) -> Note:
    """What a configuration cannot say, the environment often can."""
    if note.status != "cannot be expressed":
        return note
    if note.knob == "precision":
        return Note(note.knob, "expressed", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE in launch.env")
    variable = f"AUTOTUNE_{note.knob.upper()}"
    return Note(note.knob, "approximated", f"{variable} in launch.env, for your script to obey")
