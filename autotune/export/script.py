"""A folder that trains the user's own script under the setup that was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from autotune.backends import backend_of
from autotune.bundle import unbundle
from autotune.export.exported import Exported, Note, Provenance
from autotune.export.launch import export_launch
from autotune.outcome import Probe
from autotune.placeholders import FILES, OUTPUT, fill, knob_values, placeholders_in
from autotune.render import HERE, render
from autotune.setup import Setup
from autotune.workload import Script

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
    notes = (*launch.notes, *_notes(probe.setup, script, files))
    return Exported({**launch.files, **others, "train.sh": start}, notes)


def words(script: Script, setup: Setup) -> list[str]:
    """Script and arguments; `HERE` stands for the exported folder."""
    paths = {name: f"{HERE}/{file}" for name, file in FILES.items()}
    return fill(script.command, {**knob_values(setup), **paths, OUTPUT: OUTPUT})


def _notes(setup: Setup, script: Script, files: dict[str, str]) -> Iterator[Note]:
    """What the user has to add to the script, where the probe did it for them."""
    placeholder = {"fsdp": "fsdp_setup", "ddp": "ddp_setup"}.get(setup.backend)
    if placeholder is None or placeholder in placeholders_in(script.command):
        return
    said = f"and the rest by {ACCELERATE}" if ACCELERATE in files else "and the sharding"
    if setup.backend == "ddp":
        said = "and the buckets"
    yield Note(
        "grad_comm_dtype",
        "approximated",
        f"this dtype {said}: put `import {placeholder}; {placeholder}.install()` before the other "
        f"imports of {script.command[0]}, as the probe did",
    )
