"""Dtypes under the names that the knobs have."""

from __future__ import annotations

import torch

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def name_of(dtype: torch.dtype | None) -> str:
    """The knob's name for a dtype; None is float32."""
    return "fp32" if dtype is None else NAMES[dtype]
