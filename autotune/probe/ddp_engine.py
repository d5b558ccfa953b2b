"""Real DDP, configured by importing the rendered module."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from autotune.probe.engine import (
    DTYPE_NAMES,
    TIMED,
    TORCH_DTYPES,
    Optimization,
    RefusedSetupError,
    plain_name,
    set_matmul_precision,
)
from autotune.probe.fsdp_engine import CLIP_NORM, import_module, scaled_step
from autotune.probe.workload import Task
from autotune.setup import Setup

MODULE_NAME = "ddp_setup"
PARTS = ("wrap", "autocast", "scaler", "COMPUTE_DTYPE", "WIRE_DTYPE", "BUCKET_BYTES")


class DdpRunner:
    """`wrap(model)` of the rendered module, its autocast and its scaler, and AdamW."""

    def __init__(
        self, task: Task, setup: Setup, rendered: str, optimization: Optimization = TIMED
    ) -> None:
        module = import_module(rendered, MODULE_NAME)
        check_module(module, setup)
        set_matmul_precision(setup)
        self._device = next(task.model.parameters()).device.type
        self._model = module.wrap(task.model, layers=task.layers)
        self._autocast = module.autocast
        self._scaler = module.scaler(self._device)
        self._optimizer = optimization.make(self._model)
        self._clip_norm = CLIP_NORM if optimization.clip else None
        self._loss = task.loss
        self._accumulation = setup.gradient_accumulation
        self._done = 0  # micro-batches of this step

    def forward(self, batch: Any) -> Tensor:
        """Scalar loss of one micro-batch.

        Here DDP decides whether the backward reduces: it has to in the last micro-batch only.
        """
        last = self._done == self._accumulation - 1
        quiet = contextlib.nullcontext() if last else self._model.no_sync()
        with quiet, self._autocast(self._device):
            return self._loss(self._model, batch)

    def backward(self, loss: Tensor) -> None:
        """Waits for the gradients of all buckets, if this is the last micro-batch of the step."""
        self._scaler.scale(loss / self._accumulation).backward()

    def end_micro_batch(self) -> None:
        """Counts towards the last one."""
        self._done += 1

    def step(self) -> bool:
        """Optimizer step; False when the scaler skipped it for overflow."""
        self._done = 0
        return scaled_step(self._scaler, self._optimizer, self._model, self._clip_norm)

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """The weights, which every rank holds whole."""
        for name, parameter in self._model.module.named_parameters():
            if parameter.requires_grad:
                yield plain_name(name), parameter.detach()

    def unsynced(self) -> AbstractContextManager[None]:
        """Gradients stay each rank's own, until the next backward outside."""
        quiet: AbstractContextManager[None] = self._model.no_sync()
        return quiet

    def close(self) -> None:
        """Drops the wrapped model, its optimizer state and the imported module."""
        sys.modules.pop(MODULE_NAME, None)
        del self._model, self._optimizer, self._scaler, self._autocast, self._loss


def check_module(module: ModuleType, setup: Setup) -> None:
    """Compares what the module will do with what the setup says.

    Raises:
        RefusedSetupError: They differ, or the module lacks a part.
    """
    missing = [name for name in PARTS if not hasattr(module, name)]
    if missing:
        raise RefusedSetupError(f"The rendered DDP module lacks {', '.join(missing)}.")
    compute, wire, bucket = (getattr(module, name) for name in PARTS[3:])
    if (
        (compute or torch.float32) != TORCH_DTYPES[setup.precision]
        or DTYPE_NAMES.get(wire) != setup.grad_comm_dtype
        or bucket != setup.bucket_bytes
    ):
        raise RefusedSetupError(
            f"The rendered DDP module computes in {compute} and reduces {bucket} bytes of {wire} "
            f"at once; the setup says precision {setup.precision} and {setup.bucket_bytes} bytes "
            f"of {setup.grad_comm_dtype}; correct the template."
        )
