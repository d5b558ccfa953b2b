"""What the command line of a user's script can say of a setup, and the files it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.placeholders import PRECISION, placeholders_in
from autotune.setup import Backend, Setup
from autotune.space import Restriction
from autotune.workload import Script

BY_PLACEHOLDER: Mapping[str, Backend] = {
    "deepspeed_config": "deepspeed",
    "fsdp_setup": "fsdp",
    "ddp_setup": "ddp",
}


def script_axes(script: Script, axes: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The axes of a sweep file with what its script's command says of the backend.

    Without a backend in the file, the placeholders of the command tell which ones it can train
    with. A command without any leaves it to the file.
    """
    told = backends_told(script)
    return {"backend": told, **axes} if told and "backend" not in axes else dict(axes)


def backends_told(script: Script) -> tuple[Backend, ...]:
    """Backends whose placeholder the command holds; accelerate starts DeepSpeed and FSDP2."""
    named = placeholders_in(script.command)
    told = tuple(backend for name, backend in BY_PLACEHOLDER.items() if name in named)
    if not told and (script.launcher == "accelerate" or "accelerate_config" in named):
        return ("deepspeed", "fsdp")
    return told


def uses_accelerate(script: Script) -> bool:
    """Whether an accelerate configuration is rendered for it."""
    return script.launcher == "accelerate" or "accelerate_config" in placeholders_in(script.command)


def script_restrictions(script: Script) -> Sequence[Restriction]:
    """Setups of which the command cannot tell the script."""
    named = frozenset(placeholders_in(script.command))
    accelerate = uses_accelerate(script)

    told = backends_told(script)

    def loads(setup: Setup) -> bool:
        if setup.backend == "deepspeed":
            return accelerate or "deepspeed_config" in named
        return accelerate or not told or setup.backend in told

    return (
        Restriction(
            "script-cannot-load-it",
            "the command has no placeholder for this backend's file",
            lambda setup, context: not loads(setup),
        ),
        Restriction(
            "script-owns-precision",
            "under DDP the script chooses the precision: it needs {precision}, {mixed_precision}, "
            "{bf16} or {fp16}, or the file {ddp_setup}",
            lambda setup, context: (
                setup.backend == "ddp"
                and setup.precision in ("bf16", "fp16")
                and not (accelerate or named & PRECISION or "ddp_setup" in named)
            ),
        ),
        Restriction(
            "script-owns-checkpointing",
            "nothing tells the script to recompute activations: it needs the placeholder "
            "{activation_checkpointing}",
            lambda setup, context: setup.activation_checkpointing and not _recomputes(setup, named),
        ),
        Restriction(
            "script-owns-its-batches",
            "nothing tells the script of another micro batch: it needs the placeholders "
            "{micro_batch} and {gradient_accumulation}, or DeepSpeed's configuration",
            lambda setup, context: (
                setup.micro_batch != context.workload.micro_batch and not _batches(setup, named)
            ),
        ),
    )


def _recomputes(setup: Setup, named: frozenset[str]) -> bool:
    own = {"fsdp": "fsdp_setup", "ddp": "ddp_setup"}.get(setup.backend)
    return "activation_checkpointing" in named or own in named


def _batches(setup: Setup, named: frozenset[str]) -> bool:
    return {"micro_batch", "gradient_accumulation"} <= named or "deepspeed_config" in named
