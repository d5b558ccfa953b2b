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
import inspect
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
PARAM_DTYPE: torch.dtype | None = torch.float16
# Dtype of the gradients while they are reduced between ranks.
REDUCE_DTYPE: torch.dtype = torch.float32
# Whether a layer's weights are sharded again between its forward and its backward.
RESHARD_AFTER_FORWARD = False
# Whether a layer's forward is computed again in the backward, to save memory.
ACTIVATION_CHECKPOINTING = False
# "high" multiplies float32 matrices in TF32; "highest" does not.
MATMUL_PRECISION = "highest"
# Samples in one backward call on one rank, and backward calls in one optimizer step.
MICRO_BATCH = 2
GRADIENT_ACCUMULATION = 2
# Largest norm of the gradient.
GRADIENT_CLIPPING = 1.0
# The first loss scale is 2 to this power, and it doubles after so many steps without overflow.
INITIAL_POWER = 12
GROWTH_INTERVAL = 500


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
    """The loss scaler for a device type, such as "cuda"."""
    return torch.amp.GradScaler(
        device,
        init_scale=2.0**INITIAL_POWER,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=GROWTH_INTERVAL,
    )


def install_scaler() -> None:
    """Gives every ``GradScaler`` that is built from now on this first scale and window."""
    build = torch.amp.GradScaler.__init__
    if hasattr(build, "installed"):
        return
    signature = inspect.signature(build)

    @functools.wraps(build)
    def build_as_measured(self: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> None:
        asked = signature.bind(self, *args, **kwargs)
        asked.arguments["init_scale"] = 2.0**INITIAL_POWER
        asked.arguments["growth_factor"] = 2.0
        asked.arguments["backoff_factor"] = 0.5
        asked.arguments["growth_interval"] = GROWTH_INTERVAL
        build(*asked.args, **asked.kwargs)

    build_as_measured.__dict__["installed"] = True
    setattr(torch.amp.GradScaler, "__init__", build_as_measured)


def install() -> None:
    """Gives every ``fully_shard`` that is called from now on these dtypes and this resharding.

    Whoever calls it, and whatever it asks for: PARAM_DTYPE and REDUCE_DTYPE replace these two of
    its policy, and RESHARD_AFTER_FORWARD its ``reshard_after_forward``, unless that is a number
    of ranks. The root's weights stay gathered, as torch keeps them. The rest of the policy, the
    other arguments, activation checkpointing and the batches stay the script's, but float32
    matrices are multiplied as MATMUL_PRECISION says, and a ``GradScaler`` that is
    built from now on has the first scale and the window of `scaler`.
    """
    torch.set_float32_matmul_precision(MATMUL_PRECISION)
    install_scaler()
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
