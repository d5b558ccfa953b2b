"""Scripts that train in their own way, before and after `install()` of rendered modules."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import (
    Accelerator,
    DistributedDataParallelKwargs,
    DistributedType,
    FullyShardedDataParallelPlugin,
    PartialState,
)
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as ImportedBefore

from autotune.probe.wire import WireTap

WIDTH = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


def batch() -> Tensor:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randn(8, WIDTH, generator=generator)


def seen(model: nn.Module, backward: Callable[[Tensor], object] = Tensor.backward) -> Any:
    """What the second step has on the wire: DDP makes its buckets in the first."""
    for _ in range(2):
        model.zero_grad()
        tap = WireTap()
        output = model(batch())
        with tap:
            backward(output.float().square().mean())
    return {
        "dtypes": [item.dtype for item in tap.collectives()],
        "calls": sum(item.calls for item in tap.collectives()),
        "computed": str(output.dtype),
    }


def seen_of_ddp(model: Any) -> Any:
    """It, the size of a bucket, and the error of the averaged gradients."""
    found = seen(model)
    alone = Model()
    alone(batch()).square().mean().backward()
    difference = norm = 0.0
    for mine, theirs in zip(alone.parameters(), model.parameters(), strict=True):
        assert mine.grad is not None
        dist.all_reduce(mine.grad)
        average = mine.grad / dist.get_world_size()
        difference += float((theirs.grad - average).square().sum())
        norm += float(average.square().sum())
    return {
        **found,
        "bucket_bytes": model.bucket_bytes_cap,
        "find_unused_parameters": model.find_unused_parameters,
        "error": (difference / norm) ** 0.5,
    }


def with_ddp() -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel as ImportedAfter

    options = DistributedDataParallelKwargs(bucket_cap_mb=7, find_unused_parameters=True)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[options])
    return {
        "ddp imported before": seen_of_ddp(
            ImportedBefore(Model(), None, None, 0, None, True, None, 7, True)
        ),
        "ddp imported after": seen_of_ddp(
            ImportedAfter(module=Model(), bucket_cap_mb=7, find_unused_parameters=True)
        ),
        "ddp accelerate": seen_of_ddp(accelerator.prepare(Model())),
    }


def with_fsdp() -> dict[str, Any]:
    by_script = Model()
    for layer in by_script.layers:
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(by_script)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        cpu_ram_efficient_loading=False,
    )
    # accelerate 1.15 has FSDP for GPUs alone, but what it does then runs on a CPU too.
    AcceleratorState._reset_state()
    PartialState().distributed_type = DistributedType.MULTI_GPU
    accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
    model = Model()
    model, _ = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    return {"fsdp script": seen(by_script), "fsdp accelerate": seen(model, accelerator.backward)}


def main() -> None:
    PartialState(cpu=True)  # joins the process group
    found = {f"{way}, not installed": what for way, what in with_fsdp().items()}
    for name in ("ddp_setup", "fsdp_setup"):
        module = importlib.import_module(name)
        module.install()
        module.install()  # again changes nothing
    found |= with_fsdp()
    AcceleratorState._reset_state(reset_partial_state=False)
    PartialState().distributed_type = DistributedType.MULTI_CPU
    found |= with_ddp()
    if dist.get_rank() == 0:
        Path(sys.argv[1], "seen.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo's threads free the last tensors on their own time


if __name__ == "__main__":
    main()
