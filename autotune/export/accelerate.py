"""accelerate's configuration file, and the module that says what the file cannot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.backends.accelerate import (
    FILE_NAME,
    TEMPLATE,
    accelerate_variables,
    reduces_in,
    unsaid,
)
from autotune.export.deepspeed import export_deepspeed, left_open
from autotune.export.deepspeed import notes as deepspeed_notes
from autotune.export.exported import Exported, Note, approximated, expressed, inexpressible
from autotune.export.own import MODULES, export_own
from autotune.export.provenance import comment
from autotune.export.subject import Subject
from autotune.render import render
from autotune.setup import Setup

BY_INSTALL = ("precision", "grad_comm_dtype", "bucket_bytes", "loss_scale")
"""What the backend's module says in place of accelerate's file, by ``install()``."""
CHECKPOINTING_BY_HAND = (
    "let every layer of your model recompute its forward (torch.utils.checkpoint)"
)


def export_accelerate(subject: Subject) -> Exported:
    """``accelerate.yaml``; DeepSpeed's JSON or the module with ``install()`` beside it."""
    setup = subject.setup
    beside = _beside(subject)
    notes: tuple[Note, ...] = tuple(accelerate_notes(setup))
    if setup.backend == "deepspeed":
        notes = tuple(left_open(notes, subject))
    return Exported({FILE_NAME: accelerate_yaml(subject, notes), **beside}, notes)


def accelerate_yaml(subject: Subject, notes: Sequence[Note]) -> str:
    """The launcher's file: as it ran, where a script was measured with one."""
    named = subject.file_name if subject.setup.backend == "deepspeed" else None
    text = subject.others.get(FILE_NAME) or render(
        TEMPLATE, accelerate_variables(subject.setup, deepspeed_file=named), subject.templates
    )
    return comment(subject.header(notes)) + text


def _beside(subject: Subject) -> dict[str, str]:
    if subject.setup.backend == "deepspeed":
        return dict(export_deepspeed(subject).files)
    return dict(export_own(subject).files) if shimmed(subject.setup) else {}


def shimmed(setup: Setup) -> tuple[str, ...]:
    """Knobs of a setup that only the backend's module can say under accelerate."""
    if setup.backend not in MODULES:
        return ()
    return tuple(knob for knob, _ in unsaid(setup) if knob in BY_INSTALL)


def by_install(setup: Setup) -> str:
    """The line that a script includes."""
    module = MODULES[setup.backend]
    return f"put `import {module}; {module}.install()` before the other imports of your script"


def accelerate_notes(setup: Setup) -> Iterator[Note]:
    """How accelerate's file, with what lies beside it, says each knob."""
    if setup.backend == "deepspeed":
        yield from _beside_json(setup)
        return
    shim = shimmed(setup)
    for note in _plain_notes(setup):
        yield expressed(note.knob, by_install(setup)) if note.knob in shim else note


def _beside_json(setup: Setup) -> Iterator[Note]:
    """Of a DeepSpeed setup: its own JSON, to which accelerate's file points, says the most."""
    for note in deepspeed_notes(setup):
        if note.status == "expressed" and note.knob != "activation_checkpointing":
            yield expressed(note.knob, f"{note.text} in ds_config.json")
        else:
            yield note


def _plain_notes(setup: Setup) -> Iterator[Note]:
    """Of an FSDP2 or DDP setup: as if the file had to do alone, where it can."""
    yield expressed("precision", "mixed_precision")
    yield expressed("grad_comm_dtype", f"{reduces_in(setup)} follows from mixed_precision")
    if setup.backend == "fsdp":
        yield expressed("zero_stage", "fsdp_reshard_after_forward")
        yield expressed("activation_checkpointing", "fsdp_activation_checkpointing")
    else:
        yield expressed("zero_stage", "MULTI_GPU keeps everything whole on every rank")
        yield _checkpointing(setup)
    if setup.bucket_bytes is not None:
        yield expressed("bucket_bytes", "DistributedDataParallel's own")
    yield from batches(setup)
    if setup.loss_scale is not None:
        yield expressed("loss_scale", "torch.amp.GradScaler's own")


def _checkpointing(setup: Setup) -> Note:
    if setup.activation_checkpointing:
        return inexpressible("activation_checkpointing", CHECKPOINTING_BY_HAND)
    return expressed("activation_checkpointing", "off, unless your model does it")


def batches(setup: Setup) -> Iterator[Note]:
    """What every script has to do by itself."""
    yield approximated("micro_batch", f"batch_size={setup.micro_batch} of your DataLoader")
    steps = setup.gradient_accumulation
    yield approximated(
        "gradient_accumulation", f"pass gradient_accumulation_steps={steps} to Accelerator"
    )
