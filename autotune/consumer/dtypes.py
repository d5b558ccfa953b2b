"""Dtypes under the names that the knobs have."""

from __future__ import annotations

import torch

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def name_of(dtype: torch.dtype | None) -> str:
    """The knob's name for a dtype; None is float32."""
    return "fp32" if dtype is None else NAMES[dtype]


def float32_products() -> str:
    """How CUDA multiplies float32 matrices, whichever of torch's two interfaces said it last.

    torch 2.13.0: ``get_float32_matmul_precision`` raises once ``torch.backends.fp32_precision`` is
    set, as transformers does.
    """
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "fp32"
