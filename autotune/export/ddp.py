"""The DDP module that was measured, under a header that says where it is from."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.export.exported import Exported, Note
from autotune.export.fsdp import batches, checkpointing, loss_scale
from autotune.export.provenance import comment
from autotune.export.subject import Subject
from autotune.setup import Setup


def export_ddp(subject: Subject) -> Exported:
    """The module's text as it ran, below comment lines."""
    found = tuple(notes(subject.setup))
    text = comment(subject.header(found)) + subject.config
    return Exported({subject.file_name: text}, found)


def notes(setup: Setup) -> Iterator[Note]:
    """How the module says each knob."""
    yield _precision(setup)
    yield Note("grad_comm_dtype", "expressed", "WIRE_DTYPE, by wrap() or install()")
    yield Note("zero_stage", "expressed", "DDP keeps everything whole on every rank")
    yield Note("bucket_bytes", "expressed", "BUCKET_BYTES, by wrap() or install()")
    yield checkpointing(setup, "wrap()")
    yield from batches()
    if setup.loss_scale is not None:
        yield loss_scale(setup.loss_scale)


def _precision(setup: Setup) -> Note:
    if setup.precision == "fp32" or setup.precision == "tf32":
        return Note("precision", "expressed", "MATMUL_PRECISION, by wrap() or install()")
    # Under DDP autocast is around the loop's own forward passes.
    by_hand = "COMPUTE_DTYPE, for your forward passes to run in: `with autocast(device):`"
    return Note("precision", "approximated", by_hand)
