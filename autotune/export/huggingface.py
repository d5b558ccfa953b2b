"""TrainingArguments of transformers: as YAML, as JSON and as words of a command line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.export import trainer
from autotune.export.accelerate import by_install
from autotune.export.deepspeed import sidecar
from autotune.export.exported import Exported, Note
from autotune.export.subject import Subject
from autotune.render import HERE, render
from autotune.setup import Setup

NAME = "training_args"


def export_huggingface(subject: Subject) -> Exported:
    """``training_args`` in three forms that say the same; what they need lies beside them."""
    notes = tuple(huggingface_notes(subject.setup))
    said = arguments(subject)
    variables = {
        **subject.setup.to_dict(),
        "provenance": subject.header(notes),
        "steps": tuple(steps(subject.setup)),
        "arguments": said,
        "flags": [words(name, value) for name, value in said.items()],
    }
    forms = {
        f"{NAME}.{form}": render(f"huggingface/{NAME}.{form}.j2", variables, subject.templates)
        for form in ("yaml", "json", "flags")
    }
    about = {f"{NAME}.provenance.json": sidecar(subject, notes)}
    return Exported({**forms, **about, **trainer.beside(subject, notes)}, notes)


def steps(setup: Setup) -> Iterator[str]:
    """What is left to do to the user's script, in lines for the head of a file."""
    installed = trainer.shimmed(setup)
    if installed:
        yield f"For {', '.join(installed)}: {by_install(setup)}."
    if trainer.in_float32(setup):
        yield f"For {setup.precision}: {trainer.in_float32(setup)}."


def arguments(subject: Subject) -> dict[str, Any]:
    """Fields of TrainingArguments, none of which needs another than its own type."""
    setup = subject.setup
    return {
        **trainer.precision(setup),
        **trainer.batches(setup),
        **trainer.clipping(subject),
        **_checkpointing(setup),
        **_sharding(subject),
    }


def _checkpointing(setup: Setup) -> dict[str, bool]:
    # 5.24 calls it activation_checkpointing and warns of this name, which every version before
    # knows and which goes in 6. It is off where nothing is said.
    by_trainer = setup.activation_checkpointing and setup.backend != "fsdp"
    return {"gradient_checkpointing": True} if by_trainer else {}


def _sharding(subject: Subject) -> dict[str, Any]:
    setup = subject.setup
    if setup.backend == "deepspeed":
        return {"deepspeed": subject.file_name}
    return trainer.of_ddp(subject) if setup.backend == "ddp" else of_fsdp(setup)


def of_fsdp(setup: Setup) -> dict[str, Any]:
    """FSDP2 as transformers shards; any key that it does not know it drops without a word."""
    config = {
        "version": 2,
        "reshard_after_forward": setup.zero_stage == 3,
        "activation_checkpointing": setup.activation_checkpointing,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    }
    return {"fsdp": True, "fsdp_config": config}


def words(name: str, value: Any) -> list[str]:
    """An argument as words of a command line; `HERE` stands for the exported folder."""
    flag = f"--{name}"
    if name == "fsdp":
        return [flag]  # with a value, it is the name of a strategy of old
    if name == "deepspeed":
        return [flag, f"{HERE}/{value}"]
    return [flag, value if isinstance(value, str) else json.dumps(value)]


def huggingface_notes(setup: Setup) -> Iterator[Note]:
    """How TrainingArguments, with what lies beside them, say each knob."""
    return trainer.trainer_notes(setup, _said(setup))


def _said(setup: Setup) -> Mapping[str, str]:
    return {
        "precision": "; ".join(filter(None, [trainer.in_words(setup), trainer.in_float32(setup)])),
        "zero_stage": "fsdp_config.reshard_after_forward",
        "activation_checkpointing": _recomputes(setup),
        "micro_batch": "per_device_train_batch_size",
        "gradient_accumulation": "gradient_accumulation_steps",
    }


def _recomputes(setup: Setup) -> str:
    if setup.backend == "fsdp":
        return "fsdp_config.activation_checkpointing"
    if not setup.activation_checkpointing:
        return "off, unless your model does it"
    return "gradient_checkpointing, of a model of transformers"
