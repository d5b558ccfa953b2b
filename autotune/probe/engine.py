"""What measuring needs from a training engine, whichever library is behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)

from autotune.request import USUAL_LEARNING_RATE
from autotune.setup import Setup

TORCH_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
WRAPPED = "_checkpoint_wrapped_module."


@dataclass(frozen=True, slots=True)
class Optimization:
    """What an engine does with its gradients.

    Attributes:
        optimizer: ``sgd`` has no momentum and no weight decay: the weights show its gradient.
        learning_rate: Of either.
        clip: Whether the gradient's norm is clipped, as the configuration says.
    """

    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = USUAL_LEARNING_RATE
    clip: bool = True

    def make(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer over the model's parameters."""
        if self.optimizer == "sgd":
            return torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        return torch.optim.AdamW(model.parameters(), lr=self.learning_rate, fused=True)


TIMED = Optimization()


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

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """Name and whole value of each trainable weight, in the dtype that the optimizer updates.

        Every rank has to go through all of them, because sharded ones are gathered.
        """

    def unsynced(self) -> AbstractContextManager[None] | None:
        """Passes inside, forward and backward, reduce no gradient; None where that cannot be."""

    def close(self) -> None:
        """Frees everything that this engine holds."""


class RefusedSetupError(Exception):
    """The library's own validation refuses the configuration, before any collective ran."""


class ScaleFloorError(Exception):
    """The library gives up, on every rank, because the loss scale cannot fall further."""


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


def plain_name(name: str) -> str:
    """A parameter's name in the model as it was built."""
    return name.replace(WRAPPED, "")
