"""accelerate's file for FSDP1, by its own launcher and a real Accelerator on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from accelerate import Accelerator, DistributedType, PartialState, utils
from accelerate.utils.modeling import get_grad_scaler
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.testing._internal.distributed.fake_pg import FakeStore

from autotune.consumer.accelerate import FILE, launched
from autotune.consumer.dtypes import name_of
from autotune.consumer.modules import Model, checkpoints, scale_of

STAGES = {ShardingStrategy.SHARD_GRAD_OP: 2, ShardingStrategy.FULL_SHARD: 3}
# Both copy the first rank's weights to the others on a GPU, and are refused where there is none.
ON_GPUS = ("FSDP_SYNC_MODULE_STATES", "FSDP_CPU_RAM_EFFICIENT_LOADING")


class Listed(Model):
    """A model that names its layers, as those of transformers do."""

    _no_split_modules = ("Layer",)


def read(folder: Path, file: str = FILE) -> dict[str, Any]:
    """What a script finds that `accelerate launch` starts with the file."""
    environment = {**launched(folder / file), **dict.fromkeys(ON_GPUS, "false")}
    with two_ranks(), utils.patch_environment(**environment):
        PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
        accelerator = Accelerator(cpu=True)
        return _effective(accelerator.prepare_model(Listed()), accelerator)


@contextmanager
def two_ranks() -> Iterator[None]:
    """A process group whose other rank does not exist: alone, FSDP1 would shard nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _effective(model: Any, accelerator: Any) -> dict[str, Any]:
    assert isinstance(model, FullyShardedDataParallel)
    units = FullyShardedDataParallel.fsdp_modules(model)
    assert len(units) == 1 + len(Listed().layers), "the layers are not sharded by themselves"
    dtypes = units[-1].mixed_precision
    found = {
        "precision": name_of(dtypes.param_dtype),
        "grad_comm_dtype": name_of(dtypes.reduce_dtype or dtypes.param_dtype),
        "zero_stage": STAGES[units[-1].sharding_strategy],
        "activation_checkpointing": checkpoints(model),
    }
    if accelerator.mixed_precision == "fp16":
        scaler = get_grad_scaler(accelerator.distributed_type, device="cpu")
        found["loss_scale"] = scale_of(scaler)
    return found
