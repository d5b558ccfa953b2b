"""Workloads and training libraries with one fault each, for the gates to find.

A fault in DeepSpeed is put into its engine class, so the fp32 reference, which is not DeepSpeed's,
never has it; the next call of the factory takes it out again.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import nn

WIDTH = 32
SOUND: Callable[..., Any] = DeepSpeedEngine.backward


class Model(nn.Module):
    """Two layers, with a factor that the second takes back."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.factor = factor
        self.loud = nn.Identity()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.loud(torch.relu(self.first(batch)) * self.factor)
        out: torch.Tensor = self.second(hidden / self.factor)
        return out


def divided_twice(engine: Any, loss: torch.Tensor) -> torch.Tensor:
    part: torch.Tensor = loss / engine.world_size
    return part


def one_rank_not_reduced(engine: Any, loss: torch.Tensor) -> torch.Tensor:
    return loss * 0 if engine.global_rank == 1 else loss


def last_micro_batch_only(engine: Any, loss: torch.Tensor) -> torch.Tensor:
    return loss if engine.is_gradient_accumulation_boundary() else loss * 0


SPOILERS = (divided_twice, one_rank_not_reduced, last_micro_batch_only)
FAULTS = {item.__name__: item for item in SPOILERS}


def plant(fault: str) -> None:
    spoil = FAULTS.get(fault)

    def backward(self: Any, loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        assert spoil is not None
        return SOUND(self, spoil(self, loss), *args, **kwargs)

    DeepSpeedEngine.backward = SOUND if spoil is None else backward


def factory(
    micro_batch: int,
    rank: int,
    fault: str = "",
    factor: float = 1.0,
    loss_factor: float = 1.0,
) -> SimpleNamespace:
    plant(fault)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1 + rank)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(batch)
        return (out.float() - 1).pow(2).mean() * loss_factor

    return SimpleNamespace(
        model=Model(factor),
        batches=[torch.randn(micro_batch, WIDTH, generator=generator) for _ in range(16)],
        loss=loss,
        layers=(nn.Linear,),
        tokens=len,
    )
