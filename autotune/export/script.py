"""A folder that trains the user's own script under the setup that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autotune.backends import backend_of
from autotune.bundle import unbundle
from autotune.export.exported import Exported, Note, Provenance
from autotune.export.launch import export_launch
from autotune.outcome import Probe
from autotune.placeholders import FILES, OUTPUT, fill, knob_values, placeholders_in
from autotune.render import HERE, render
from autotune.setup import Backend, Setup
from autotune.workload import Script

INSTALLED: Mapping[Backend, str] = {"fsdp": "fsdp_setup", "ddp": "ddp_setup"}
BY_INSTALL = ("grad_comm_dtype", "zero_stage", "bucket_bytes")
"""Knobs that a module's ``install()`` gives to a script that shards or wraps by itself."""
ACCELERATE = FILES["accelerate_config"]


def single(probe: Probe) -> Probe:
    """The probe with the one file that configures its backend, as other exports take it."""
    files = unbundle(probe.rendered)
    return replace(probe, rendered=files[backend_of(probe.setup).file_name])


def export_script(
    probe: Probe, provenance: Provenance, templates: Path | None, script: Script
) -> Exported:
    """The files that the script was measured with, and ``train.sh``, which starts it."""
    launch = export_launch(single(probe), provenance, templates)
    files = unbundle(probe.rendered)
    others = {
        name: provenance.comment() + text
        for name, text in files.items()
        if name != backend_of(probe.setup).file_name
    }
    variables = {
        "provenance": provenance.lines(),
        "launcher": script.launcher,
        "words": words(script, probe.setup),
        "deepspeed_file": files.get("ds_config.json") and "ds_config.json",
        "accelerate_file": ACCELERATE,
    }
    start = render("launch/train.sh.j2", variables, templates)
    notes = tuple(_in_script(note, probe.setup, script) for note in launch.notes)
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
    module = INSTALLED.get(setup.backend)
    if module is None or module in named or note.knob not in BY_INSTALL:
        return note
    first = note.knob == BY_INSTALL[0]
    how = (
        f"put `import {module}; {module}.install()` before the other imports of "
        f"{script.command[0]}, as the probe did"
    )
    return Note(note.knob, "expressed", how if first else "by the same install()")
