"""The blocks of a DeepSpeed configuration as DeepSpeed reads them, old spellings included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from autotune.configs.texts import block
from autotune.configs.values import AUTO, as_bool, as_int

BUCKET_ELEMENTS = 500_000_000
"""Of a bucket, where nothing is said (``DeepSpeedZeroConfig``)."""

Switch = Literal["on", "off", "script"]
PRECISIONS: tuple[Literal["fp16", "bf16"], ...] = ("fp16", "bf16")


def zero_block(config: Mapping[str, Any]) -> dict[str, Any]:
    """``zero_optimization`` as a mapping; its boolean form means stage 1 or 0."""
    value = config.get("zero_optimization")
    if value is True:
        return {"stage": 1, "allgather_bucket_size": config.get("allgather_size", BUCKET_ELEMENTS)}
    return dict(block(config, "zero_optimization"))


def bf16_block(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The bf16 block that counts: that of the old name only where the new one is absent."""
    return block(config, "bf16" if config.get("bf16") is not None else "bfloat16")


def zero_stage(config: Mapping[str, Any]) -> int | None:
    """ZeRO's stage; None where the file leaves it to the script."""
    stage = zero_block(config).get("stage", 0)
    return None if stage == AUTO else as_int(stage)


def switch(config: Mapping[str, Any], name: Literal["fp16", "bf16"], *, hf: bool) -> Switch:
    """Whether a precision is switched on.

    Args:
        config: The configuration.
        name: Which one.
        hf: Whether transformers or accelerate read it: they add a block that is absent.
    """
    values = bf16_block(config) if name == "bf16" else block(config, "fp16")
    if not values and hf and name not in config:
        return "script"
    enabled = values.get("enabled", False)
    placeholder = isinstance(enabled, str) and as_bool(enabled) is None
    if enabled == AUTO or placeholder:
        return "script"
    return "on" if as_bool(enabled) else "off"
