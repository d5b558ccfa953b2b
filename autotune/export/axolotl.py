"""A fragment of axolotl's YAML, and the plugin that says what it cannot.

Checked with axolotl 0.19.0: utils/schemas (the keys), core/builders (what becomes of them in
TrainingArguments), utils/config and loaders/model.py (the dtype of the weights),
integrations/base.py (plugins). Its ``fsdp_config.mixed_precision_policy`` is read by nothing, so it
is not written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autotune.export import trainer
from autotune.export.exported import Exported, Note, approximated, inexpressible
from autotune.export.own import MODULES
from autotune.export.subject import Subject
from autotune.render import render
from autotune.setup import Setup

CONFIG, PLUGIN = "axolotl.yaml", "axolotl_setup.py"
CLASS = "axolotl_setup.Setup"


def export_axolotl(subject: Subject) -> Exported:
    """``axolotl.yaml``; the plugin with the module, or DeepSpeed's JSON, beside it."""
    setup = subject.setup
    notes = tuple(axolotl_notes(setup))
    variables = {
        **setup.to_dict(),
        "provenance": subject.header(notes),
        "arguments": arguments(subject),
        "module": MODULES[setup.backend] if trainer.shimmed(setup) else None,
    }
    names = [CONFIG, *([PLUGIN] if trainer.shimmed(setup) else [])]
    files = {name: render(f"axolotl/{name}.j2", variables, subject.templates) for name in names}
    return Exported({**files, **trainer.beside(subject, notes)}, notes)


def arguments(subject: Subject) -> dict[str, Any]:
    """Keys of axolotl's schema. All switches are said: axolotl turns bf16 and TF32 on by itself."""
    setup = subject.setup
    return {
        **trainer.precision(setup),
        "micro_batch_size": setup.micro_batch,
        "gradient_accumulation_steps": setup.gradient_accumulation,
        **trainer.clipping(subject),
        "gradient_checkpointing": setup.activation_checkpointing and setup.backend != "fsdp",
        **_sharding(subject),
        **({"plugins": [CLASS]} if trainer.shimmed(setup) else {}),
    }


def _sharding(subject: Subject) -> dict[str, Any]:
    setup = subject.setup
    if setup.backend == "deepspeed":
        return {"deepspeed": subject.file_name}
    if setup.backend == "ddp":
        megabytes = trainer.bucket_cap_mb(setup)
        return {} if megabytes is None else {"ddp_bucket_cap_mb": megabytes}
    config = {
        "reshard_after_forward": setup.zero_stage == 3,
        "activation_checkpointing": setup.activation_checkpointing,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    }
    return {"fsdp_version": 2, "fsdp_config": config}


def axolotl_notes(setup: Setup) -> Iterator[Note]:
    """How the fragment, with what lies beside it, says each knob."""
    narrow = setup.backend != "deepspeed" and setup.precision in ("bf16", "fp16")
    for note in trainer.trainer_notes(setup, _said(setup), _plugin(setup)):
        if note.text == "ddp_bucket_cap_mb":
            note = replace(note, text="ddp_bucket_cap_mb, which axolotl reads unless you set rl")
        yield _of_narrow_weights(setup, note) if narrow else note


def _said(setup: Setup) -> Mapping[str, str]:
    in_config = setup.backend == "fsdp"
    return {
        "precision": trainer.in_words(setup),
        "zero_stage": "fsdp_config.reshard_after_forward",
        "activation_checkpointing": (
            "fsdp_config.activation_checkpointing" if in_config else "gradient_checkpointing"
        ),
        "micro_batch": "micro_batch_size",
        "gradient_accumulation": "gradient_accumulation_steps",
    }


def _plugin(setup: Setup) -> str:
    if setup.backend not in MODULES:
        return ""
    module = MODULES[setup.backend]
    return (
        f"`plugins: [{CLASS}]` calls `{module}.install()`: start in the folder with both, or put "
        "it on PYTHONPATH; axolotl goes on without a plugin that it cannot find, and only says so"
    )


def _of_narrow_weights(setup: Setup, note: Note) -> Note:
    """Whole weights are loaded in the precision; those of adapters stay float32.

    FSDP2 reduces them in the dtype that its policy says, DDP in their own.
    """
    whole = f"axolotl loads whole weights in {setup.precision}; adapters (LoRA) stay float32"
    if note.knob == "precision":
        scaler = ", and torch's scaler refuses the others" if setup.precision == "fp16" else ""
        text = f"{note.text}, but {whole}{scaler}; all weights were float32 when it was measured"
        return approximated(note.knob, text)
    if setup.backend != "ddp":
        return note
    if note.knob == "bucket_bytes":
        return approximated(note.knob, f"{note.text}, in float32 gradients, but {whole}")
    if note.knob == "grad_comm_dtype" and setup.grad_comm_dtype == "fp32":
        by_hand = "for gradients of float32, train adapters or use --to huggingface"
        return inexpressible(
            note.knob, f"{whole}, and DDP reduces gradients as they are: {by_hand}"
        )
    return note
