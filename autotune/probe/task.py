"""What a rank trains: the model, its batches and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

DISTINCT_BATCHES = 8  # enough that no step trains on the batch before it


@dataclass(frozen=True, slots=True)
class Task:
    """A model with what is needed to train it.

    Attributes:
        model: Weights in fp32, on the device.
        batches: Batches without end.
        loss: Scalar loss of the model on a batch.
        layers: Classes to shard and to checkpoint; empty to let the backend find them.
        tokens: Number of tokens in a batch.
    """

    model: nn.Module
    batches: Iterator[Any]
    loss: Callable[[nn.Module, Any], Tensor]
    layers: tuple[type[nn.Module], ...]
    tokens: Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Rank:
    """Where this process stands in the launch."""

    rank: int
    world_size: int
    device: torch.device
