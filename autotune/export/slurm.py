"""A folder that trains as a job of Slurm: the launch folder, and the script for sbatch."""

from __future__ import annotations

from autotune.export.exported import Exported
from autotune.export.script import export_start
from autotune.export.subject import Subject
from autotune.render import render

BATCH = "train.sbatch"
TEMPLATE = "slurm/train.sbatch.j2"


def export_slurm(subject: Subject) -> Exported:
    """``train.sbatch``, and the files of ``launch``, which it starts on every node."""
    launch = export_start(subject)
    variables = {
        "provenance": subject.header(launch.notes),
        "start": "launch.sh" if subject.script is None else "train.sh",
    }
    text = render(TEMPLATE, variables, subject.templates)
    return Exported({**launch.files, BATCH: text}, launch.notes)
