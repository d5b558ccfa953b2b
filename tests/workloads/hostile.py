"""Workloads that misbehave, for the tests. The sweep file's folder is on the path."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

FEATURES = 8


class Model(nn.Module):
    """Two linear layers in a list, so that FSDP2 finds layers to shard."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers[1](self.layers[0](x))
        return out


def broken() -> None:
    raise ValueError("the workload is broken")


MISBEHAVIOURS: dict[str, Callable[[], object]] = {
    "raise": broken,
    "exit": lambda: sys.exit(3),
    "exit-silently": lambda: os._exit(0),
    "sleep": lambda: time.sleep(3600),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "oom": lambda: torch.empty(2**50),
    "flood": lambda: print("x" * 10_000_000),
}


def misbehave(how: str, rank: int) -> None:
    """Does what it is told; ``how`` may end in ``-on-rank-1``."""
    name = how.removesuffix("-on-rank-1")
    if name in MISBEHAVIOURS and (name == how or rank == 1):
        MISBEHAVIOURS[name]()


def factory(micro_batch: int, rank: int, how: str = "", only: int = 0) -> Any:
    """Misbehaves in the loss; with ``only``, when that is the micro-batch."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        if not only or only == micro_batch:
            misbehave(how, rank)
        out: Tensor = model(batch).float().pow(2).mean()
        spoilt = how == "nan" or (how == "nan-on-rank-1" and rank == 1)
        return out * float("nan") if spoilt else out

    generator = torch.Generator().manual_seed(rank)
    batches = [torch.randn(micro_batch, FEATURES, generator=generator) for _ in range(3)]
    return SimpleNamespace(model=Model(), batches=batches, loss=loss, tokens=len)


def frozen(micro_batch: int, rank: int) -> Any:
    """One parameter takes no gradient."""
    made = factory(micro_batch, rank)
    made.model.layers[0].weight.requires_grad_(False)
    return made


def incomplete() -> Any:
    """Lacks batches and loss."""
    return SimpleNamespace(model=Model())


def empty(micro_batch: int, rank: int) -> Any:
    """Has no batches."""
    made = factory(micro_batch, rank)
    made.batches = []
    return made


class Counting(nn.Linear):
    """A layer that counts its forward calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Counting.calls += 1
        return super().forward(x)


def counting(micro_batch: int, rank: int) -> Any:
    """Reports the forward calls of its only layer, over the whole probe, as tokens."""
    Counting.calls = 0
    made = factory(micro_batch, rank)
    made.model.layers[0] = Counting(FEATURES, FEATURES)
    made.tokens = lambda batch: Counting.calls
    return made
