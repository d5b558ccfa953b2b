"""Real FSDP2, configured by importing the rendered module."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autotune.probe.engine import (
    DTYPE_NAMES,
    TIMED,
    TORCH_DTYPES,
    Optimization,
    RefusedSetupError,
    plain_name,
    set_matmul_precision,
)
from autotune.probe.workload import Task
from autotune.setup import Setup

MODULE_NAME = "fsdp_setup"
CLIP_NORM = 1.0  # as in the DeepSpeed template, so that both steps do the same work


class FsdpRunner:
    """`shard(model)` of the rendered module, AdamW and the module's scaler."""

    def __init__(
        self, task: Task, setup: Setup, rendered: str, optimization: Optimization = TIMED
    ) -> None:
        module = import_module(rendered, MODULE_NAME)
        check_module(module, setup)
        set_matmul_precision(setup)
        device = next(task.model.parameters()).device.type
        self._model = module.shard(task.model, layers=task.layers)
        self._scaler = module.scaler(device)
        self._optimizer = optimization.make(self._model)
        self._clip_norm = CLIP_NORM if optimization.clip else None
        self._loss = task.loss
        self._accumulation = setup.gradient_accumulation

    def forward(self, batch: Any) -> Tensor:
        """Scalar loss of one micro-batch."""
        return self._loss(self._model, batch)

    def backward(self, loss: Tensor) -> None:
        """FSDP2 reduces in every micro-batch, as ZeRO stages 2 and 3 do."""
        self._scaler.scale(loss / self._accumulation).backward()

    def end_micro_batch(self) -> None:
        """Gradients accumulate by themselves."""

    def step(self) -> bool:
        """Optimizer step; False when the scaler skipped it for overflow."""
        return scaled_step(self._scaler, self._optimizer, self._model, self._clip_norm)

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """The sharded weights, gathered one by one."""
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                whole = parameter.detach()
                yield plain_name(name), whole.full_tensor() if isinstance(whole, DTensor) else whole

    @contextmanager
    def unsynced(self) -> Iterator[None]:
        """Gradients inside stay whole on every rank, until the next backward outside."""
        self._model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._model.set_requires_gradient_sync(True)

    def close(self) -> None:
        """Drops the sharded model, its optimizer state and the imported module."""
        sys.modules.pop(MODULE_NAME, None)
        del self._model, self._optimizer, self._scaler, self._loss


def scaled_step(
    scaler: torch.amp.GradScaler,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    clip_norm: float | None,
) -> bool:
    """Optimizer step and empty gradients; False when the scaler skipped it for overflow."""
    scaler.unscale_(optimizer)
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return bool(scaler.get_scale() >= scale)


def import_module(rendered: str, name: str) -> ModuleType:
    """Imports the rendered text from a file, as the user's script will."""
    with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        path = Path(folder) / f"{name}.py"
        path.write_text(rendered, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module


def check_module(module: ModuleType, setup: Setup) -> None:
    """Compares what the module will do with what the setup says.

    Raises:
        RefusedSetupError: They differ, or the module lacks a part.
    """
    missing = [name for name in ("policy", "shard", "scaler") if not hasattr(module, name)]
    if missing:
        raise RefusedSetupError(f"The rendered FSDP module lacks {', '.join(missing)}.")
    policy = module.policy()
    compute = policy.param_dtype or torch.float32
    wire = DTYPE_NAMES.get(policy.reduce_dtype or compute)
    if compute != TORCH_DTYPES[setup.precision] or wire != setup.grad_comm_dtype:
        raise RefusedSetupError(
            f"The rendered FSDP module's policy is {policy}; the setup says precision "
            f"{setup.precision} and {setup.grad_comm_dtype} on the wire; correct the template."
        )
