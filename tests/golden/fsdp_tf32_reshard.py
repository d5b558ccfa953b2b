"""Shards a model with FSDP2, as it was measured. Needs torch and nothing else.

    model = fsdp_setup.shard(Model(), layers=(Block,))
    optimizer = torch.optim.AdamW(model.parameters())  # after shard, which replaces them
    scaler = fsdp_setup.scaler(device)

    for batches in steps:  # GRADIENT_ACCUMULATION batches of MICRO_BATCH samples each
        for batch in batches:
            loss = loss_of(model(batch)) / fsdp_setup.GRADIENT_ACCUMULATION
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), fsdp_setup.GRADIENT_CLIPPING)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

Master weights and optimizer state stay in the model's own dtype: build the model in float32.

A script that calls ``fully_shard`` by itself, or has a library do it, can keep its loop. It calls
``fsdp_setup.install()`` before that.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

# Dtype of forward, backward and the gathered weights; None keeps the model's.
PARAM_DTYPE: torch.dtype | None = None
# Dtype of the gradients while they are reduced between ranks.
REDUCE_DTYPE: torch.dtype = torch.float32
# Whether a layer's weights are sharded again between its forward and its backward.
RESHARD_AFTER_FORWARD = True
# Whether a layer's forward is computed again in the backward, to save memory.
ACTIVATION_CHECKPOINTING = False
# "high" multiplies float32 matrices in TF32; "highest" does not.
MATMUL_PRECISION = "high"
# Samples in one backward call on one rank, and backward calls in one optimizer step.
MICRO_BATCH = 2
GRADIENT_ACCUMULATION = 2
# Largest norm of the gradient.
GRADIENT_CLIPPING = 1.0


def policy() -> MixedPrecisionPolicy:
    """Dtypes of the computation and of the gradient reduction."""
    return MixedPrecisionPolicy(param_dtype=PARAM_DTYPE, reduce_dtype=REDUCE_DTYPE)


def shard(
    model: nn.Module,
    layers: tuple[type[nn.Module], ...] = (),
    mesh: DeviceMesh | None = None,
) -> nn.Module:
    """Shards ``model`` in place, layer by layer, and returns it.

    It also sets torch's process-wide float32 matmul precision.

    Args:
        model: Model in float32. Its parameters become sharded tensors on the mesh's device.
        layers: Classes of the layers that are gathered one at a time. Default: the items of
            the outermost ``nn.ModuleList``s; without any, the model is gathered as a whole.
        mesh: Ranks to shard over. Default: all, on the accelerator if there is one.
    """
    torch.set_float32_matmul_precision(MATMUL_PRECISION)
    units = find_layers(model, layers)
    if ACTIVATION_CHECKPOINTING:
        units = checkpoint(model, units)
    for unit in units:
        fully_shard(
            unit, mesh=mesh, reshard_after_forward=RESHARD_AFTER_FORWARD, mp_policy=policy()
        )
    # The backward starts with the root's weights: with layers below it, it keeps them.
    reshard_root = RESHARD_AFTER_FORWARD and not units
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard_root, mp_policy=policy())
    return model


def scaler(device: str) -> torch.amp.GradScaler:
    """A loss scaler that does nothing, for only fp16 needs one."""
    return torch.amp.GradScaler(device, enabled=False)


def install() -> None:
    """Gives every ``fully_shard`` that is called from now on these dtypes and this resharding.

    Whoever calls it, and whatever it asks for: PARAM_DTYPE and REDUCE_DTYPE replace these two of
    its policy, and RESHARD_AFTER_FORWARD its ``reshard_after_forward``, unless that is a number
    of ranks. The root's weights stay gathered, as torch keeps them. The rest of the policy, the
    other arguments, activation checkpointing and the batches stay the script's, but float32
    matrices are multiplied as MATMUL_PRECISION says.
    """
    torch.set_float32_matmul_precision(MATMUL_PRECISION)
    # None lets torch find the root, and shard again what is below it.
    reshard = None if RESHARD_AFTER_FORWARD else False

    @functools.wraps(fully_shard)
    def shard_as_measured(
        module: Any,
        *,
        reshard_after_forward: bool | int | None = None,
        mp_policy: MixedPrecisionPolicy | None = None,
        **others: Any,
    ) -> Any:
        ranks = type(reshard_after_forward) is int
        dtypes = dataclasses.replace(
            mp_policy or policy(), param_dtype=PARAM_DTYPE, reduce_dtype=REDUCE_DTYPE
        )
        return fully_shard(
            module,
            reshard_after_forward=reshard_after_forward if ranks else reshard,
            mp_policy=dtypes,
            **others,
        )

    # Under every name, so that modules which have imported it before obey too; this one need not.
    for item in [item for item in sys.modules.values() if isinstance(item, ModuleType)]:
        if vars(item) is not globals():
            names = [name for name, value in vars(item).items() if value is fully_shard]
            vars(item).update(dict.fromkeys(names, shard_as_measured))


def find_layers(model: nn.Module, layers: tuple[type[nn.Module], ...]) -> list[nn.Module]:
    """The layers of the model, inner ones before those that contain them."""
    if layers:
        found = [item for item in model.modules() if isinstance(item, layers)]
    else:
        found = list(dict.fromkeys(list_items(model)))
    return [item for item in reversed(found) if item is not model]


def list_items(module: nn.Module, *, in_list: bool = False) -> Iterator[nn.Module]:
    """Items of the outermost ``nn.ModuleList``s."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from list_items(child, in_list=True)
        elif in_list:
            yield child
        else:
            yield from list_items(child)


def checkpoint(model: nn.Module, units: list[nn.Module]) -> list[nn.Module]:
    """Wraps each unit so that its forward is computed again in the backward."""
    wrapped = {unit: checkpoint_wrapper(unit) for unit in units}
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=wrapped.__getitem__, check_fn=wrapped.__contains__
    )
    return list(wrapped.values())
