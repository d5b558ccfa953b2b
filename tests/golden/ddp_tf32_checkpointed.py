"""Trains a model with DDP, as it was measured. Needs torch and nothing else.

    model = ddp_setup.wrap(Model().to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = ddp_setup.scaler(device)

    for batches in steps:  # GRADIENT_ACCUMULATION batches of MICRO_BATCH samples each
        for number, batch in enumerate(batches, start=1):
            # Gradients are reduced once a step, in the backward of the last batch.
            last = number == ddp_setup.GRADIENT_ACCUMULATION
            with contextlib.nullcontext() if last else model.no_sync():
                with ddp_setup.autocast(device):
                    loss = loss_of(model(batch)) / ddp_setup.GRADIENT_ACCUMULATION
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), ddp_setup.GRADIENT_CLIPPING)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

Master weights and optimizer state stay in the model's own dtype: build the model in float32.

A script that builds its ``DistributedDataParallel`` by itself, or has a library do it, can keep
its loop. It calls ``ddp_setup.install()`` before that.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.nn.parallel import DistributedDataParallel

# Dtype of the products in forward and backward; None keeps the model's.
COMPUTE_DTYPE: torch.dtype | None = None
# Dtype of the gradients while they are reduced between ranks.
WIRE_DTYPE: torch.dtype = torch.float32
# Bytes on the wire that fill a bucket of gradients; the last one in it may exceed them.
BUCKET_BYTES = 25000000
# Whether a layer's forward is computed again in the backward, to save memory.
ACTIVATION_CHECKPOINTING = True
# "high" multiplies float32 matrices in TF32; "highest" does not.
MATMUL_PRECISION = "high"
# Samples in one backward call on one rank, and backward calls in one optimizer step.
MICRO_BATCH = 2
GRADIENT_ACCUMULATION = 2
# Largest norm of the gradient.
GRADIENT_CLIPPING = 1.0


def wrap(
    model: nn.Module,
    device_ids: list[int] | None = None,
    layers: tuple[type[nn.Module], ...] = (),
) -> DistributedDataParallel:
    """Wraps ``model``, whose gradients are from now on averaged over all ranks.

    It also sets torch's process-wide float32 matmul precision.

    Args:
        model: Model in float32, on its device.
        device_ids: That device's number, for DDP to move inputs there.
        layers: Classes of the layers that compute their forward again, if any do. Default: the
            items of the outermost ``nn.ModuleList``s.
    """
    torch.set_float32_matmul_precision(MATMUL_PRECISION)
    if ACTIVATION_CHECKPOINTING:
        checkpoint(model, find_layers(model, layers))
    wrapped = DistributedDataParallel(
        model,
        device_ids=device_ids,
        bucket_cap_mb=bucket_cap_mb(),
        gradient_as_bucket_view=True,
    )
    if not hasattr(DistributedDataParallel.__init__, "installed"):
        connect(wrapped)
    return wrapped


def autocast(device: str) -> contextlib.AbstractContextManager[None]:
    """Forward passes inside compute in COMPUTE_DTYPE, on a device type such as "cuda"."""
    if COMPUTE_DTYPE is None:
        return contextlib.nullcontext()
    return torch.autocast(device, COMPUTE_DTYPE)


def scaler(device: str) -> torch.amp.GradScaler:
    """A loss scaler that does nothing, for only fp16 needs one."""
    return torch.amp.GradScaler(device, enabled=False)


def install() -> None:
    """Gives every ``DistributedDataParallel`` that is built from now on this wire and bucket.

    Whoever builds it, and whatever bucket it asks for; its other arguments stay. A hook of the
    script's own cannot be registered beside WIRE_DTYPE's: torch refuses a second one. Precision,
    activation checkpointing and the batches stay the script's, but float32 matrices are multiplied
    as MATMUL_PRECISION says.
    """
    torch.set_float32_matmul_precision(MATMUL_PRECISION)
    build = DistributedDataParallel.__init__
    if hasattr(build, "installed"):
        return
    signature = inspect.signature(build)

    @functools.wraps(build)
    def build_as_measured(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        asked = signature.bind(self, *args, **kwargs)
        asked.arguments.pop("bucket_cap_mb_list", None)  # torch prefers it to the one size
        asked.arguments["bucket_cap_mb"] = bucket_cap_mb()
        build(*asked.args, **asked.kwargs)
        connect(self)

    build_as_measured.__dict__["installed"] = True
    # In the class, so that names of it which were imported before have it too.
    setattr(DistributedDataParallel, "__init__", build_as_measured)


def bucket_cap_mb() -> float:
    """BUCKET_BYTES in the unit of DDP, which is MiB of the float32 gradients themselves."""
    return BUCKET_BYTES / WIRE_DTYPE.itemsize * torch.float32.itemsize / 2**20


def connect(model: DistributedDataParallel) -> None:
    """Makes the gradients of ``model`` cross the wire in WIRE_DTYPE; float32 is DDP's own."""
    if WIRE_DTYPE is not torch.float32:
        model.register_comm_hook(
            model.process_group, lambda group, bucket: average_narrow(group, bucket.buffer())
        )


def average_narrow(
    group: dist.ProcessGroup, bucket: torch.Tensor
) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over the ranks in WIRE_DTYPE; the bucket itself stays float32.

    A division by all ranks before the sum loses small float16 gradients, one after it overflows
    with large ones. So it is cut into two of about the same size, as FSDP2 cuts it. The first is
    by a power of two and the second is done in float32, so the casts alone round.
    """
    before = 2.0 ** math.ceil(math.log2(group.size()) / 2)
    narrow = bucket.div_(before).to(WIRE_DTYPE)

    def widen(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        return bucket.copy_(done.value()[0]).mul_(before / group.size())

    sent: torch.futures.Future[list[torch.Tensor]]
    sent = dist.all_reduce(narrow, group=group, async_op=True).get_future()
    return sent.then(widen)


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
