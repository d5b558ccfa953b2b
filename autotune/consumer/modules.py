"""The exported modules: what fully_shard, DDP and GradScaler do once they are imported."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from autotune.consumer.dtypes import float32_products, name_of

WIDTH = 4
KEPT: list[Any] = []
"""Process groups of the past. A hook's future can be the last to hold one, in a thread of gloo's,
which then waits for itself: the process aborts with "Resource deadlock avoided" (torch 2.13.0)."""


class Layer(nn.Module):
    """A layer to shard."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, WIDTH) in and out."""
        output: torch.Tensor = self.inner(x)
        return output


class Model(nn.Module):
    """Two layers in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, WIDTH) in and out."""
        for layer in self.layers:
            x = layer(x)
        return x


@contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    """A process group of this process alone."""
    rendezvous = f"file://{folder}/.rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    KEPT.append(dist.group.WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()
        (folder / ".rendezvous").unlink(missing_ok=True)


def read_fsdp(folder: Path) -> dict[str, Any]:
    """What ``fully_shard`` is told by ``shard()``."""
    module = importlib.import_module("fsdp_setup")
    with one_rank(folder):
        model = module.shard(Model(), mesh=init_device_mesh("cpu", (1,)))
        return {**sharded(model), **_batches(module), **_scale(module.scaler("cpu"))}


def sharded(model: nn.Module) -> dict[str, Any]:
    """Knobs of a model of FSDP2, out of the state that FSDP2 keeps of its first inner layer."""
    sharded_modules: list[Any] = [x for x in model.modules() if isinstance(x, FSDPModule)]
    states = [item._get_fsdp_state() for item in sharded_modules]
    inner = states[1] if len(states) > 1 else states[0]
    policy = inner._mp_policy
    (group,) = inner._fsdp_param_groups
    return {
        "precision": _computes(policy.param_dtype),
        "grad_comm_dtype": name_of(policy.reduce_dtype or policy.param_dtype),
        "zero_stage": 3 if group._reshard_after_forward else 2,
        "activation_checkpointing": checkpoints(model),
    }


def read_ddp(folder: Path) -> dict[str, Any]:
    """What DDP is told by ``wrap()``, and the dtype that crosses its wire."""
    module = importlib.import_module("ddp_setup")
    with one_rank(folder):
        model = module.wrap(Model())
        autocast = module.COMPUTE_DTYPE
        return {
            **replicated(model),
            "precision": _computes(autocast),
            **_batches(module),
            **_scale(module.scaler("cpu")),
        }


def replicated(model: DistributedDataParallel) -> dict[str, Any]:
    """Knobs of a DDP model, by one backward of it."""
    wire = _reduced_dtype(model)
    size = getattr(torch, {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[wire]).itemsize
    return {
        "grad_comm_dtype": wire,
        "zero_stage": 0,
        # DDP counts the float32 gradients themselves.
        "bucket_bytes": round(model.bucket_bytes_cap * size / torch.float32.itemsize),
        "activation_checkpointing": checkpoints(model),
    }


def _reduced_dtype(model: DistributedDataParallel) -> str:
    """The dtype that a hook hands to all_reduce; without one, that of the gradients."""
    seen: list[str] = []
    reduce = dist.all_reduce

    def spy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(name_of(tensor.dtype))
        return reduce(tensor, *args, **kwargs)

    dist.all_reduce = spy
    try:
        model(torch.ones(1, WIDTH)).sum().backward()
    finally:
        dist.all_reduce = reduce
    return seen[-1] if seen else "fp32"


def checkpoints(model: nn.Module) -> bool:
    """Whether some module of it computes its forward again."""
    return any("_checkpoint_wrapped" in name for name, _ in model.named_modules())


def _computes(dtype: torch.dtype | None) -> str:
    """The precision: float32 products may be TF32 ones."""
    return float32_products() if dtype is None else name_of(dtype)


def _batches(module: ModuleType) -> dict[str, Any]:
    return {
        "micro_batch": module.MICRO_BATCH,
        "gradient_accumulation": module.GRADIENT_ACCUMULATION,
    }


def _scale(scaler: torch.amp.GradScaler) -> dict[str, Any]:
    return {"loss_scale": scale_of(scaler)} if scaler.is_enabled() else {}


def scale_of(scaler: torch.amp.GradScaler) -> dict[str, Any]:
    """Start and window of a scaler; torch's has no hysteresis and no floor."""
    power = math.log2(scaler.get_scale())
    window = scaler.get_growth_interval()
    return {"initial_power": round(power), "window": window, "hysteresis": 1, "minimum": 0}
