"""The FSDP2 module that was measured, under a header that says where it is from."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.export.exported import Exported, Note
from autotune.export.provenance import comment
from autotune.export.subject import Subject
from autotune.setup import LossScale, Setup


def export_fsdp(subject: Subject) -> Exported:
    """The module's text as it ran, below comment lines."""
    found = tuple(notes(subject.setup))
    text = comment(subject.header(found)) + subject.config
    return Exported({subject.file_name: text}, found)


def notes(setup: Setup) -> Iterator[Note]:
    """How the module says each knob."""
    tf32 = setup.precision == "tf32"
    yield Note("precision", "expressed", "MATMUL_PRECISION" if tf32 else "PARAM_DTYPE")
    yield Note("grad_comm_dtype", "expressed", "REDUCE_DTYPE")
    yield Note("zero_stage", "expressed", "RESHARD_AFTER_FORWARD")
    yield checkpointing(setup, "shard()")
    yield from batches()
    if setup.loss_scale is not None:
        yield loss_scale(setup.loss_scale)


def checkpointing(setup: Setup, applied: str) -> Note:
    """Layers are wrapped by the module's own function ``applied``, never by its ``install()``."""
    text = f"ACTIVATION_CHECKPOINTING, by {applied}"
    if setup.activation_checkpointing:
        text += "; install() cannot: then let your script recompute its layers' forward"
    return Note("activation_checkpointing", "expressed", text)


def batches() -> Iterator[Note]:
    """What every loop has to do by itself."""
    by_hand = "for your training loop to use"
    yield Note("micro_batch", "approximated", f"MICRO_BATCH, {by_hand}")
    yield Note("gradient_accumulation", "approximated", f"GRADIENT_ACCUMULATION, {by_hand}")


def loss_scale(scale: LossScale) -> Note:
    """The module's ``scaler()``, or a script's own after ``install()``."""
    if scale.hysteresis > 1 or scale.minimum > 0:
        missing = "torch.amp.GradScaler has neither hysteresis nor a floor"
        return Note("loss_scale", "approximated", f"INITIAL_POWER and GROWTH_INTERVAL; {missing}")
    text = "INITIAL_POWER and GROWTH_INTERVAL, by scaler() or install()"
    return Note("loss_scale", "expressed", text)
