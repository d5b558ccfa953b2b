"""A folder that trains the user's own script under the setup that was measured."""

from __future__ import annotations

from autotune.export.exported import Exported, Note
from autotune.export.launch import export_launch
from autotune.export.own import MODULES
from autotune.export.provenance import comment
from autotune.export.subject import Subject
from autotune.placeholders import FILES, OUTPUT, fill, knob_values, placeholders_in
from autotune.render import HERE, render
from autotune.setup import Setup
from autotune.workload import Script

BY_INSTALL = ("grad_comm_dtype", "zero_stage", "bucket_bytes", "loss_scale")
"""Knobs that a module's ``install()`` gives to a script that shards or wraps by itself."""


def export_start(subject: Subject) -> Exported:
    """A folder that starts training: the script that was measured, or any that it is given."""
    if subject.script is None:
        return export_launch(subject)
    return export_script(subject, subject.script)


def export_script(subject: Subject, script: Script) -> Exported:
    """The files that the script was measured with, and ``train.sh``, which starts it."""
    launch = export_launch(subject)
    notes = tuple(_in_script(note, subject.setup, script) for note in launch.notes)
    header = subject.header(notes)
    others = {name: comment(header) + text for name, text in subject.others.items()}
    variables = {
        "provenance": header,
        "launcher": script.launcher,
        "words": words(script, subject.setup),
    }
    start = render("launch/train.sh.j2", variables, subject.templates)
    return Exported({**launch.files, **others, "train.sh": start}, notes)


def words(script: Script, setup: Setup) -> list[str]:
    """Script and arguments; `HERE` stands for the exported folder."""
    paths = {name: f"{HERE}/{file}" for name, file in FILES.items()}
    return fill(script.command, {**knob_values(setup), **paths, OUTPUT: OUTPUT})


def _in_script(note: Note, setup: Setup, script: Script) -> Note:
    """How well the exported folder says a knob to the script."""
    named = placeholders_in(script.command)
    if note.knob in named:
        return Note(note.knob, "expressed", "an argument in train.sh")
    module = MODULES.get(setup.backend)
    if module is None or module in named or note.knob not in BY_INSTALL:
        return note
    first = note.knob == BY_INSTALL[0]
    how = (
        f"put `import {module}; {module}.install()` before the other imports of "
        f"{script.command[0]}, as the probe did"
    )
    return Note(note.knob, "expressed", how if first else "by the same install()")
