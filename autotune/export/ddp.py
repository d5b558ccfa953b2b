"""The DDP module that was measured, under a header that says where it is from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autotune.backends import backend_of
from autotune.export.exported import Exported, Note, Provenance
from autotune.export.fsdp import batches, checkpointing, loss_scale
from autotune.outcome import Probe
from autotune.setup import Setup


def export_ddp(probe: Probe, provenance: Provenance, templates: Path | None) -> Exported:
    """The module's text as it ran, below comment lines."""
    text = provenance.comment() + probe.rendered
    return Exported({backend_of(probe.setup).file_name: text}, tuple(notes(probe.setup)))


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
