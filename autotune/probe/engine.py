"""What measuring needs from a training engine, whichever library is behind it."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)

from autotune.setup import Setup

TORCH_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
LEARNING_RATE = 1e-4  # small enough that no setup diverges within a probe


class Engine(Protocol):
    """One model under one setup, ready to train."""

    def forward(self, batch: Any) -> Tensor:
        """Scalar loss of one micro-batch."""

    def backward(self, loss: Tensor) -> None:
        """Backward of one micro-batch, with the gradient collectives that it starts."""

    def end_micro_batch(self) -> None:
        """Book-keeping after each backward; not part of the optimizer step's time."""

    def step(self) -> bool:
        """Optimizer step. Returns whether the update was applied (not skipped)."""

    def close(self) -> None:
        """Frees everything that this engine holds."""


class RefusedSetupError(Exception):
    """The library's own validation refuses the configuration, before any collective ran."""


def set_matmul_precision(setup: Setup) -> None:
    """TF32 is a process-wide flag of torch, so every probe sets it."""
    torch.set_float32_matmul_precision("high" if setup.precision == "tf32" else "highest")


def checkpoint_layers(model: nn.Module, layers: tuple[type[nn.Module], ...]) -> None:
    """Makes every layer recompute its forward in the backward."""
    wanted = layers or tuple(type(item) for item in _stacked(model))
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, wanted))


def _stacked(model: nn.Module) -> list[nn.Module]:
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return [item for items in lists for item in items]
