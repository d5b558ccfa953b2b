"""A Python module that gives Lightning's Trainer its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autotune.export.deepspeed import notes as deepspeed_notes
from autotune.export.deepspeed import without_auto
from autotune.export.exported import Exported, Note, approximated, expressed
from autotune.export.fsdp import loss_scale
from autotune.export.own import export_own
from autotune.export.provenance import comment
from autotune.export.subject import Subject
from autotune.render import render
from autotune.setup import Backend, Setup

FILE_NAME = "lightning_setup.py"
PREPARE = "call `lightning_setup.prepare(self.model, self.device_mesh)` in configure_model"
"""The second line that a script needs, beside ``Trainer(**trainer_arguments())``."""


def export_lightning(subject: Subject) -> Exported:
    """``lightning_setup.py``, with the configuration of the setup's own backend beside it."""
    notes = tuple(lightning_notes(subject.setup))
    variables = {**subject.setup.to_dict(), "file_name": subject.file_name}
    template = f"lightning/{subject.setup.backend}.py.j2"
    text = comment(subject.header(notes)) + render(template, variables, subject.templates)
    return Exported({FILE_NAME: text, **export_own(_filled(subject)).files}, notes)


def _filled(subject: Subject) -> Subject:
    """Lightning fills no "auto" in."""
    if subject.setup.backend != "deepspeed":
        return subject
    return replace(subject, config=without_auto(subject))


def lightning_notes(setup: Setup) -> Iterator[Note]:
    """How the module, with what lies beside it, says each knob."""
    if setup.backend == "deepspeed":
        yield from _of_deepspeed(setup)
        return
    yield expressed("precision", _precision(setup))
    yield expressed("grad_comm_dtype", WIRES[setup.backend])
    yield expressed("zero_stage", STAGES[setup.backend])
    if setup.bucket_bytes is not None:
        yield expressed("bucket_bytes", "bucket_cap_mb of DDPStrategy")
    yield from _by_trainer(setup)
    if setup.loss_scale is not None:
        found = loss_scale(setup.loss_scale)
        yield Note(found.knob, found.status, f"{found.text}; plugins of the Trainer")


WIRES: dict[Backend, str] = {
    "fsdp": f"reduce_dtype: {PREPARE}",
    "ddp": "the hook that DDPStrategy gives the model",
}
STAGES: dict[Backend, str] = {
    "fsdp": f"reshard_after_forward: {PREPARE}",
    "ddp": "DDP keeps everything whole on every rank",
}


def _of_deepspeed(setup: Setup) -> Iterator[Note]:
    """The JSON stays as it is, but for the accumulation, which Lightning takes from the Trainer."""
    by_trainer = tuple(_by_trainer(setup))
    for note in deepspeed_notes(setup):
        if note.knob == "precision":
            yield expressed("precision", _precision(setup))
        elif note.knob not in [item.knob for item in by_trainer]:
            yield Note(note.knob, note.status, f"{note.text} in ds_config.json")
    yield from by_trainer


def _precision(setup: Setup) -> str:
    if setup.precision == "tf32":
        return "trainer_arguments() calls torch.set_float32_matmul_precision"
    if setup.backend == "fsdp":
        return f"param_dtype: {PREPARE}"
    return "precision of the Trainer" + (" and ds_config.json" * (setup.backend == "deepspeed"))


def _by_trainer(setup: Setup) -> Iterator[Note]:
    recomputes = PREPARE if setup.activation_checkpointing else "off, unless your model does it"
    yield expressed("activation_checkpointing", recomputes)
    by_hand = "lightning_setup.MICRO_BATCH, for your DataLoader to use as its batch_size"
    yield approximated("micro_batch", by_hand)
    yield expressed("gradient_accumulation", "accumulate_grad_batches of the Trainer")
