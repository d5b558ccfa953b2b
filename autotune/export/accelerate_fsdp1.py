"""accelerate's configuration file for FSDP1, for those who cannot move to FSDP2 yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.backends.accelerate import (
    FILE_NAME,
    FIRST_SCALE,
    FSDP1_STRATEGIES,
    GROWTH_INTERVAL,
    TEMPLATE,
    accelerate_variables,
    reduces_in,
)
from autotune.configs.texts import parse_yaml
from autotune.export.accelerate import batches
from autotune.export.exported import Exported, Note, approximated, expressed, inexpressible
from autotune.export.provenance import comment
from autotune.export.subject import Subject
from autotune.render import TORCH_DTYPES, render
from autotune.setup import LossScale, Setup

ABOUT = "The setup is one of FSDP2, and this file trains with FSDP1: expect another speed."

OWN_SCALE = LossScale(initial_power=FIRST_SCALE, window=GROWTH_INTERVAL, hysteresis=1, minimum=0)
"""Of the ``ShardedGradScaler`` that accelerate makes."""


def export_accelerate_fsdp1(subject: Subject) -> Exported:
    """``accelerate.yaml`` with ``fsdp_version: 1``, and nothing beside it."""
    notes = tuple(fsdp1_notes(subject.setup))
    variables = accelerate_variables(subject.setup, carried=_own(subject), fsdp_version=1)
    text = render(TEMPLATE, variables, subject.templates)
    return Exported({FILE_NAME: comment((*subject.header(notes), ABOUT)) + text}, notes)


def _own(subject: Subject) -> Mapping[str, Any]:
    """The file that the user's script was measured with, whose other keys are theirs to keep."""
    found = parse_yaml(subject.others.get(FILE_NAME, "{}"))
    return found if isinstance(found, Mapping) else {}


def fsdp1_notes(setup: Setup) -> Iterator[Note]:
    """How the file says each knob."""
    yield _precision(setup)
    yield _wire(setup)
    strategy = FSDP1_STRATEGIES[setup.zero_stage]
    yield expressed("zero_stage", f"fsdp_sharding_strategy: {strategy}")
    yield expressed("activation_checkpointing", "fsdp_activation_checkpointing")
    yield from batches(setup)
    if setup.loss_scale is not None:
        yield _loss_scale(setup.loss_scale)


def _precision(setup: Setup) -> Note:
    if setup.precision == "fp32":
        return expressed("precision", "mixed_precision")
    if setup.precision == "tf32":
        by_hand = "call torch.set_float32_matmul_precision('high') before training"
        return inexpressible("precision", f"accelerate's file cannot switch TF32 on: {by_hand}")
    # accelerate 1.15.0, accelerator.py: prepare_model wraps FSDP1 alone in autocast.
    return approximated(
        "precision",
        f"mixed_precision: {setup.precision}; accelerate runs FSDP1 under autocast too, so "
        "norms, softmax and losses compute in fp32, which FSDP2 did not when it was measured",
    )


def _wire(setup: Setup) -> Note:
    narrow = reduces_in(setup)
    if setup.grad_comm_dtype == narrow:
        return expressed("grad_comm_dtype", f"{narrow} follows from mixed_precision")
    computes = TORCH_DTYPES[setup.precision if narrow != "fp32" else None]
    reduces = TORCH_DTYPES[setup.grad_comm_dtype]
    return inexpressible(
        "grad_comm_dtype",
        f"FSDP1 reduces in {narrow} here, and fsdp_setup.install() does not reach it: pass "
        "fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=1, mixed_precision_policy="
        f"torch.distributed.fsdp.MixedPrecision(param_dtype={computes}, reduce_dtype={reduces}, "
        f"buffer_dtype={computes})) to Accelerator",
    )


def _loss_scale(scale: LossScale) -> Note:
    if scale == OWN_SCALE:
        return expressed("loss_scale", "ShardedGradScaler's own")
    return inexpressible(
        "loss_scale",
        f"pass kwargs_handlers=[GradScalerKwargs(init_scale=2.0**{scale.initial_power}, "
        f"growth_interval={scale.window})] to Accelerator, which makes a ShardedGradScaler of it",
    )
