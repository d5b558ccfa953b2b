"""A trainer of our own beside the backends: FSDP2 with given dtypes, without any template."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from autotune.probe.control import Control
from autotune.probe.engine import plain_name
from autotune.probe.fsdp_engine import CLIP_NORM
from autotune.probe.workload import Rank, Task


class Reference:
    """The task's model with fp32 master weights, sharded over all ranks.

    Forward and backward run in ``compute``, gradients are averaged in ``wire``.
    """

    def __init__(
        self, task: Task, place: Rank, control: Control, compute: torch.dtype, wire: torch.dtype
    ) -> None:
        self._task = task
        self._place = place
        self._control = control
        model = task.model.float()
        # FSDP2 takes no scalars; they stay whole and are averaged here.
        self._scalars = [item for item in model.parameters() if item.dim() == 0]
        self.mesh = init_device_mesh(place.device.type, (place.world_size,))
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=wire)
        layers = [item for item in model.modules() if isinstance(item, task.layers)]
        for module in (*reversed([item for item in layers if item is not model]), model):
            fully_shard(module, mesh=self.mesh, mp_policy=policy, ignored_params=set(self._scalars))
        self.model = model

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names as in the model that was built."""
        for name, parameter in self.model.named_parameters():
            yield plain_name(name), parameter

    def part(self, value: Tensor) -> Tensor:
        """This rank's part of a weight or a gradient."""
        if isinstance(value, DTensor):
            return value.to_local()
        return value.reshape(-1) if self._place.rank == 0 else value.reshape(-1)[:0]

    def backward(self, batches: Sequence[Any], scale: float = 1.0) -> float:
        """Gradients of one step in place of the old ones; its mean loss on this rank."""
        self.model.zero_grad(set_to_none=True)
        total = 0.0
        for batch in batches:
            loss = self._task.loss(self.model, batch)
            (loss * (scale / len(batches))).backward()
            total += float(loss.detach())
        for scalar in self._scalars:
            if scalar.grad is not None:
                dist.all_reduce(scalar.grad)
                scalar.grad /= self._place.world_size
        return total / len(batches)

    def gradients(self) -> Mapping[str, Tensor]:
        """This rank's part of every gradient."""
        return {
            name: self.part(parameter.grad)
            for name, parameter in self.parameters()
            if parameter.grad is not None
        }

    def clip(self) -> None:
        """Limits the norm of the whole gradient to 1, as the backends do."""
        squares = [float(part.double().square().sum()) for part in self.gradients().values()]
        (total,) = self._control.total([sum(squares)])
        norm = math.sqrt(total)
        if norm > CLIP_NORM:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(CLIP_NORM / norm)

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        """AdamW; element by element loops, because scalars are not sharded like the rest."""
        return torch.optim.AdamW(
            self.model.parameters(), lr=learning_rate, foreach=False, fused=False
        )

    def weights(self) -> dict[str, Tensor]:
        """A copy of this rank's part of every weight, in host memory."""
        return {
            name: self.part(parameter.detach()).to("cpu", copy=True)
            for name, parameter in self.parameters()
        }

    @torch.no_grad()
    def reset(self, weights: Mapping[str, Tensor]) -> None:
        """Takes back earlier weights."""
        for name, parameter in self.parameters():
            self.part(parameter.detach()).copy_(weights[name])


@torch.no_grad()
def load_weights(model: nn.Module, parts: Mapping[str, Tensor], place: Rank) -> None:
    """Gives a whole model the weights whose parts the ranks hold."""
    mesh = init_device_mesh(place.device.type, (place.world_size,))
    for name, parameter in model.named_parameters():
        part = parts[plain_name(name)].to(place.device)
        parameter.copy_(_whole(part, parameter, mesh))


def _whole(part: Tensor, like: Tensor, mesh: DeviceMesh) -> Tensor:
    if like.dim() == 0:
        value = part.clone() if part.numel() else torch.empty(1, device=part.device)
        dist.broadcast(value, src=0)
        return value.reshape(())
    sharded = DTensor.from_local(
        part, mesh, (Shard(0),), run_check=False, shape=like.shape, stride=like.stride()
    )
    return sharded.full_tensor()


class Activations:
    """Largest absolute output of every module while it is entered."""

    def __init__(self, model: nn.Module) -> None:
        self._largest: dict[str, Tensor] = {}
        self._hooks = [
            module.register_forward_hook(self._hook(name or type(module).__name__))
            for name, module in model.named_modules()
        ]

    def _hook(self, name: str) -> Any:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in _floating(output):
                # amax of a NaN is NaN, and so the largest is not finite either.
                largest = tensor.detach().abs().amax().double()
                before = self._largest.get(name, largest)
                self._largest[name] = torch.maximum(before, largest)

        return note

    def close(self) -> tuple[str, float]:
        """Removes the hooks; the module with the largest output, and that output."""
        for hook in self._hooks:
            hook.remove()
        values = {plain_name(name): float(value) for name, value in self._largest.items()}
        finite = {name: v if math.isfinite(v) else math.inf for name, v in values.items()}
        # A container repeats what its last child put out, so the innermost is named.
        name = max(finite, key=lambda item: (finite[item], item.count(".")), default="")
        return name, finite.get(name, 0.0)


def _floating(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel():
            yield value
    elif isinstance(value, Mapping):
        yield from (item for part in value.values() for item in _floating(part))
    elif isinstance(value, Iterable) and not isinstance(value, str):
        yield from (item for part in value for item in _floating(part))
