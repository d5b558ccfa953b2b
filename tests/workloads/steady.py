"""A workload whose backward takes the same time each call, whatever else the machine does.

So fewer backward calls a step are faster for certain, and the rest makes no difference.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

SECONDS = 0.03


class Slow(torch.autograd.Function):
    """The identity, with a backward that takes a while."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(SECONDS)
        return gradient


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = Slow.apply(model(batch))  # type: ignore[no-untyped-call]
    return out.float().pow(2).mean()


def factory(micro_batch: int, rank: int) -> SimpleNamespace:
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    generator = torch.Generator().manual_seed(rank)
    return SimpleNamespace(
        model=model,
        batches=[torch.randn(micro_batch, 8, generator=generator) for _ in range(4)],
        loss=loss,
        layers=(nn.Linear,),
        tokens=len,
    )
