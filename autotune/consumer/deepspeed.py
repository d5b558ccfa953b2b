"""DeepSpeed's JSON, by ``DeepSpeedConfig``."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.config import DeepSpeedConfig

from autotune.consumer.dtypes import name_of

AUTO = "auto"
MICRO = "train_micro_batch_size_per_gpu"
BATCH = {"micro_batch": MICRO, "gradient_accumulation": "gradient_accumulation_steps"}


def read(folder: Path, file: str = "ds_config.json") -> dict[str, Any]:
    """What DeepSpeed makes of a configuration file."""
    return effective(json.loads((folder / file).read_text(encoding="utf-8")))


def effective(config: Mapping[str, Any]) -> dict[str, Any]:
    """What DeepSpeed makes of a configuration, for one rank.

    What is "auto" in it is left to whoever fills it in, and a batch that is, is not in the answer.
    """
    open_batch = {MICRO: 1} if config.get(MICRO) == AUTO else {}
    found = _effective({**_without_auto(config), **open_batch})
    return {knob: value for knob, value in found.items() if config.get(BATCH.get(knob, "")) != AUTO}


def _without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_auto(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if value != AUTO
    }


def _effective(config: Mapping[str, Any]) -> dict[str, Any]:
    parsed: Any = DeepSpeedConfig(copy.deepcopy(dict(config)))
    precision = _precision(parsed)
    wire = _wire(parsed, precision)
    zero = parsed.zero_config
    bucketed = zero.stage > 0
    return {
        "precision": precision,
        "grad_comm_dtype": wire,
        "zero_stage": int(zero.stage),
        "micro_batch": parsed.train_micro_batch_size_per_gpu,
        "gradient_accumulation": parsed.gradient_accumulation_steps,
        **({"bucket_bytes": int(zero.reduce_bucket_size) * _size(wire)} if bucketed else {}),
        **({"overlap_comm": bool(zero.overlap_comm)} if bucketed else {}),
        **({"loss_scale": _loss_scale(parsed.float16_config)} if precision == "fp16" else {}),
    }


def _precision(parsed: Any) -> str:
    if parsed.float16_config.enabled:
        return "fp16"
    return "bf16" if parsed.bfloat16_config.enabled else "fp32"


def _wire(parsed: Any, precision: str) -> str:
    """The dtype of the reduction: the engine's rule for a configuration that does not say it."""
    said = parsed.communication_data_type
    return precision if said is None else name_of(said)


def _size(wire: str) -> int:
    return torch.float32.itemsize if wire == "fp32" else torch.bfloat16.itemsize


def _loss_scale(fp16: Any) -> dict[str, Any]:
    return {
        "initial_power": fp16.initial_scale_power,
        "window": fp16.loss_scale_window,
        "hysteresis": fp16.hysteresis,
        "minimum": int(fp16.min_loss_scale),
    }
