"""The FSDP2 module that was measured, under a header that says where it is from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autotune.backends import backend_of
from autotune.export.exported import Exported, Note, Provenance
from autotune.outcome import Probe
from autotune.setup import LossScale, Setup


def export_fsdp(probe: Probe, provenance: Provenance, templates: Path | None) -> Exported:
    """The module's text as it ran, below comment lines."""
    text = provenance.comment() + probe.rendered
    return Exported({backend_of(probe.setup).file_name: text}, tuple(notes(probe.setup)))


def notes(setup: Setup) -> Iterator[Note]:
    """How the module says each knob."""
    tf32 = setup.precision == "tf32"
    yield Note("precision", "expressed", "MATMUL_PRECISION" if tf32 else "PARAM_DTYPE")
    yield Note("grad_comm_dtype", "expressed", "REDUCE_DTYPE")
    yield Note("zero_stage", "expressed", "RESHARD_AFTER_FORWARD")
    yield Note("activation_checkpointing", "expressed", "ACTIVATION_CHECKPOINTING")
    by_hand = "for your training loop to use"
    yield Note("micro_batch", "approximated", f"MICRO_BATCH, {by_hand}")
    yield Note("gradient_accumulation", "approximated", f"GRADIENT_ACCUMULATION, {by_hand}")
    if setup.loss_scale is not None:
        yield _loss_scale(setup.loss_scale)


def _loss_scale(scale: LossScale) -> Note:
    if scale.hysteresis > 1 or scale.minimum > 0:
        missing = "torch.amp.GradScaler has neither hysteresis nor a floor"
        return Note("loss_scale", "approximated", f"INITIAL_POWER and GROWTH_INTERVAL; {missing}")
    return Note("loss_scale", "expressed", "INITIAL_POWER and GROWTH_INTERVAL")
