"""A model and batches that the scripts beside it train."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FEATURES = 16


def model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(3)))


def batch(rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(2, FEATURES, generator=generator)


def loss(output: Tensor) -> Tensor:
    return output.float().pow(2).mean()
