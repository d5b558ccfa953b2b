"""A file for ``trl sft --config`` and TRL's other commands, with accelerate's beside it.

Checked with TRL 1.16.0: trl/cli hands ``accelerate_config`` to `accelerate launch`, and the rest of
the file are the fields of SFTConfig, which are those of TrainingArguments, and of ModelConfig.
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

CONFIG, SCRIPT = "trl.yaml", "trl_sft.py"
START = f"accelerate launch --config_file {FILE_NAME} {SCRIPT} --config {CONFIG}"


def export_trl(subject: Subject) -> Exported:
    """``trl.yaml`` and ``accelerate.yaml``; what these need beside them."""
    setup = subject.setup
    notes = tuple(trl_notes(setup))
    variables = {
        **setup.to_dict(),
        "provenance": subject.header(notes),
        "arguments": arguments(subject),
        "module": MODULES[setup.backend] if trainer.shimmed(setup) else None,
        "start": START,
    }
    names = [CONFIG, *([SCRIPT] if trainer.shimmed(setup) else [])]
    files = {name: render(f"trl/{name}.j2", variables, subject.templates) for name in names}
    launcher = {FILE_NAME: accelerate_yaml(subject, notes)}
    return Exported({**files, **launcher, **trainer.beside(subject, notes)}, notes)


def arguments(subject: Subject) -> dict[str, Any]:
    """Fields of SFTConfig and ModelConfig, and the launcher's file."""
    setup = subject.setup
    by_trainer = setup.activation_checkpointing and setup.backend != "fsdp"
    return {
        "accelerate_config": FILE_NAME,
        # Of TRL's defaults, bf16 and gradient_checkpointing are on; the latter beside FSDP's own
        # is refused.
        **trainer.precision(setup),
        "dtype": "float32",
        **trainer.batches(setup),
        **trainer.clipping(subject),
        "gradient_checkpointing": by_trainer,
        **(trainer.of_ddp(subject) if setup.backend == "ddp" else {}),
    }


def trl_notes(setup: Setup) -> Iterator[Note]:
    """How the files say each knob."""
    return trainer.trainer_notes(setup, _said(setup), trainer.by_script(setup, START))


def _said(setup: Setup) -> Mapping[str, str]:
    by_trainer = setup.backend != "fsdp"
    return {
        "precision": trainer.in_words(setup),
        "zero_stage": f"fsdp_reshard_after_forward in {FILE_NAME}",
        "activation_checkpointing": (
            "gradient_checkpointing"
            if by_trainer
            else f"fsdp_activation_checkpointing in {FILE_NAME}"
        ),
        "micro_batch": "per_device_train_batch_size",
        "gradient_accumulation": "gradient_accumulation_steps",
    }
