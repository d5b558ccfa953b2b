"""A setup in the user's own DeepSpeed configuration: its knobs change, all else stays."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from autotune.configs.deepspeed_blocks import bf16_block, zero_block
from autotune.configs.deepspeed_keys import BATCH, VALIDATED
from autotune.configs.texts import block
from autotune.configs.values import AUTO
from autotune.setup import Setup

TRAIN, MICRO, ACCUMULATION = BATCH
SCALE = ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")


def carry(
    rendered: Mapping[str, Any], config: Mapping[str, Any], setup: Setup, *, auto: bool
) -> dict[str, Any]:
    """The user's configuration with the knobs of a setup.

    A knob that the setup does not have (None) leaves the user's value: the bucket of stage 0,
    and the overlap where there are no streams. ``train_batch_size`` goes where it is a number:
    DeepSpeed derives it.

    Args:
        rendered: The setup as DeepSpeed's own template writes it.
        config: The user's configuration, which `read_deepspeed` has understood.
        setup: The setup.
        auto: Whether a script runs it whose transformers or accelerate fill in ``"auto"``. Without
            them it is left out, so that DeepSpeed takes its default.
    """
    carried = copy.deepcopy(dict(config))
    if not auto:
        _drop_auto(carried)
    _batch(carried, rendered)
    carried["communication_data_type"] = rendered["communication_data_type"]
    # Where the block is absent, accelerate adds it with this key.
    cast = {"auto_cast": True} if auto and "fp16" not in config else {}
    carried["fp16"] = _fp16(block(carried, "fp16"), block(rendered, "fp16"), setup, cast)
    bf16 = {**bf16_block(carried), "enabled": setup.precision == "bf16"}
    carried.pop("bfloat16", None)  # accelerate adds a bf16 block, which would count instead
    carried["bf16"] = bf16
    carried["zero_optimization"] = _zero(carried, block(rendered, "zero_optimization"), setup)
    if block(carried, "data_types").get("param_dtype"):
        carried["data_types"]["param_dtype"] = _param_dtype(setup)
    return carried


def _drop_auto(config: dict[str, Any]) -> None:
    """Takes out what DeepSpeed reads as a default (blocks) or stumbles over (the rest)."""
    for name in (*BATCH, "gradient_clipping"):
        if config.get(name) == AUTO:
            del config[name]
    for name in VALIDATED:
        if isinstance(config.get(name), dict):
            config[name] = _without_auto(config[name])


def _without_auto(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_auto(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value != AUTO
    }


def _batch(config: dict[str, Any], rendered: Mapping[str, Any]) -> None:
    if config.get(TRAIN) != AUTO:
        config.pop(TRAIN, None)
    for name in (MICRO, ACCUMULATION):
        if config.get(name) != AUTO:
            config[name] = rendered[name]


def _fp16(
    own: Mapping[str, Any], rendered: Mapping[str, Any], setup: Setup, added: Mapping[str, Any]
) -> dict[str, Any]:
    values = {**own, "enabled": setup.precision == "fp16"}
    if setup.precision != "fp16":
        return values
    values |= added
    values["loss_scale"] = rendered["loss_scale"]
    if "consecutive_hysteresis" in values:  # no knob; the search replays without it
        values["consecutive_hysteresis"] = False
    for key in SCALE:
        if key != "hysteresis" or setup.zero_stage > 0:  # stage 0 has none
            values[key] = rendered[key]
    return values


def _zero(config: Mapping[str, Any], rendered: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    values = {**zero_block(config), "stage": rendered["stage"]}
    if setup.bucket_bytes is not None:
        values["reduce_bucket_size"] = rendered["reduce_bucket_size"]
    if setup.overlap_comm is not None:
        values["overlap_comm"] = rendered["overlap_comm"]
    return values


def _param_dtype(setup: Setup) -> str:
    """DeepSpeed demands that it is the dtype of the precision."""
    return setup.precision if setup.precision in ("bf16", "fp16") else "fp32"
