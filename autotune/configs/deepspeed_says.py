"""What a DeepSpeed configuration says of each knob, DeepSpeed's defaults where it says nothing.

Each function takes whatever stands in the file: None for a knob that the file leaves open, and for
a value that is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.configs.deepspeed_blocks import BUCKET_ELEMENTS, switch, zero_block
from autotune.configs.deepspeed_keys import BATCH
from autotune.configs.values import AUTO, as_bool, as_int
from autotune.setup import WIRE_DTYPES, Precision, WireDtype

TRAIN, MICRO, ACCUMULATION = BATCH
SCALE_KEYS: Mapping[str, tuple[str, int]] = {
    "initial_power": ("initial_scale_power", 16),
    "window": ("loss_scale_window", 1000),
    "hysteresis": ("hysteresis", 2),
    "minimum": ("min_loss_scale", 1),
}
"""Key and default in ``fp16`` of each field of a loss scale (``DeepSpeedFP16Config``)."""


def precision(config: Mapping[str, Any], *, auto: bool) -> Precision | None:
    """Compute dtype; None where the script's flags decide.

    Args:
        config: The configuration.
        auto: Whether transformers or accelerate complete it.
    """
    fp16, bf16 = switch(config, "fp16", hf=auto), switch(config, "bf16", hf=auto)
    if "on" in (fp16, bf16):
        return "fp16" if fp16 == "on" else "bf16"
    return None if "script" in (fp16, bf16) else "fp32"


def wire(config: Mapping[str, Any], computed: str | None) -> WireDtype | None:
    """Dtype of the gradients on the wire, under a precision."""
    named = config.get("communication_data_type")
    if named is None:
        return follows(computed)
    found = str(named).lower()
    return next((dtype for dtype in WIRE_DTYPES if dtype == found), None)


def follows(computed: str | None) -> WireDtype | None:
    """The dtype on the wire where none is named: that of the precision."""
    if computed is None:
        return None
    return "bf16" if computed == "bf16" else "fp16" if computed == "fp16" else "fp32"


def bucket_elements(config: Mapping[str, Any]) -> int | None:
    """Gradient elements in a bucket; None where transformers or accelerate fill them in."""
    value = zero_block(config).get("reduce_bucket_size", BUCKET_ELEMENTS)
    return None if value == AUTO else as_int(value)


def overlap(config: Mapping[str, Any], stage: int | None) -> bool | None:
    """Whether the reduction overlaps the backward."""
    named = zero_block(config).get("overlap_comm")
    if named is None or named == AUTO:
        return None if stage is None else stage == 3
    return bool(as_bool(named))


def size(config: Mapping[str, Any], name: str) -> int | None:
    """A size of the batch that the file says as a number."""
    value = config.get(name)
    return None if value is None or value == AUTO else as_int(value)


def accumulation(config: Mapping[str, Any]) -> int | None:
    """Backward calls a step."""
    named = size(config, ACCUMULATION)
    if named is not None or config.get(ACCUMULATION) == AUTO:
        return named
    given = [config.get(name) for name in (TRAIN, MICRO)]
    if all(value is not None and value != AUTO for value in given):
        return None
    return 1


def loss_scale(fp16: Mapping[str, Any], stage: int | None) -> dict[str, int]:
    """Fields of the dynamic loss scale; at stage 0 without hysteresis, which it does not have."""
    found = {}
    for field, (key, usual) in SCALE_KEYS.items():
        if field == "hysteresis" and stage == 0:
            continue
        value = fp16.get(key, usual)
        found[field] = usual if value == AUTO else as_int(value) or 0
    return found
