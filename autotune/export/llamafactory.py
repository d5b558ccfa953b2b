"""A fragment of LLaMA-Factory's YAML: arguments of transformers' Trainer and one of its own.

Checked with LLaMA-Factory 0.9.5, whose interface is called v0: hparams/parser.py reads the file
with HfArgumentParser and refuses other keys, model/model_utils/checkpointing.py recomputes
activations by itself unless that is disabled, model/adapter.py trains in float32 weights. FSDP2 it
takes from `accelerate launch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.backends.accelerate import FILE_NAME
from autotune.export import trainer
from autotune.export.accelerate import accelerate_yaml
from autotune.export.exported import Exported, Note
from autotune.export.own import MODULES
from autotune.export.subject import Subject
from autotune.render import render
from autotune.setup import Setup

CONFIG, SCRIPT = "llamafactory.yaml", "llamafactory_train.py"


def export_llamafactory(subject: Subject) -> Exported:
    """``llamafactory.yaml``, and what it needs beside it."""
    setup = subject.setup
    notes = tuple(llamafactory_notes(setup))
    variables = {
        **setup.to_dict(),
        "provenance": subject.header(notes),
        "arguments": arguments(subject),
        "module": MODULES[setup.backend] if trainer.shimmed(setup) else None,
        "start": start(setup),
    }
    names = [CONFIG, *([SCRIPT] if trainer.shimmed(setup) else [])]
    files = {
        name: render(f"llamafactory/{name}.j2", variables, subject.templates) for name in names
    }
    if setup.backend == "fsdp":
        files[FILE_NAME] = accelerate_yaml(subject, notes)
    return Exported({**files, **trainer.beside(subject, notes)}, notes)


def start(setup: Setup) -> str:
    """The command that trains, of the folder with the files."""
    script = SCRIPT if trainer.shimmed(setup) else "-m llamafactory.launcher"
    if setup.backend == "fsdp":
        return f"accelerate launch --config_file {FILE_NAME} {script} {CONFIG}"
    if trainer.shimmed(setup):
        return f"torchrun --nproc-per-node gpu {script} {CONFIG}"
    return f"FORCE_TORCHRUN=1 llamafactory-cli train {CONFIG}"


def arguments(subject: Subject) -> dict[str, Any]:
    """Arguments of the Trainer, and LLaMA-Factory's switch for recomputing activations."""
    setup = subject.setup
    own = setup.activation_checkpointing and setup.backend != "fsdp"
    return {
        **trainer.precision(setup),
        **trainer.batches(setup),
        **trainer.clipping(subject),
        # Its default is to recompute; beside FSDP's own it would be done twice.
        "disable_gradient_checkpointing": not own,
        **({"deepspeed": subject.file_name} if setup.backend == "deepspeed" else {}),
        **(trainer.of_ddp(subject) if setup.backend == "ddp" else {}),
    }


def llamafactory_notes(setup: Setup) -> Iterator[Note]:
    """How the fragment, with what lies beside it, says each knob."""
    return trainer.trainer_notes(setup, _said(setup), trainer.by_script(setup, start(setup)))


def _said(setup: Setup) -> Mapping[str, str]:
    by_file = setup.backend == "fsdp"
    return {
        "precision": trainer.in_words(setup),
        "zero_stage": f"fsdp_reshard_after_forward in {FILE_NAME}",
        "activation_checkpointing": (
            f"fsdp_activation_checkpointing in {FILE_NAME}"
            if by_file
            else "disable_gradient_checkpointing"
        ),
        "micro_batch": "per_device_train_batch_size",
        "gradient_accumulation": "gradient_accumulation_steps",
    }
