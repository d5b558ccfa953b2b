"""The side channel between the ranks: never in a timed window, never on the timed group."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

IDLE_LIMIT = timedelta(days=7)  # a warm launch may wait for its controller


class Control:
    """A gloo group of its own, on every backend."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo", timeout=IDLE_LIMIT)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def share(self, message: dict[str, Any] | None) -> dict[str, Any]:
        """Gives every rank the message of rank 0, as JSON."""
        text = json.dumps(message).encode() if self.rank == 0 else b""
        size = torch.tensor([len(text)])
        dist.broadcast(size, src=0, group=self._group)
        data = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == 0:
            data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(data, src=0, group=self._group)
        shared: dict[str, Any] = json.loads(bytes(data.tolist()))
        return shared

    def maximum(self, values: list[float]) -> list[float]:
        """Largest value over the ranks, element by element."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def total(self, values: list[float]) -> list[float]:
        """Sum over the ranks, element by element."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def _reduce(self, values: list[float], operation: Any) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=operation, group=self._group)
        return [float(value) for value in tensor]

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Host tensors of one shape, stacked in the order of the ranks; on every rank."""
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor, group=self._group)
        return torch.stack(parts)

    def barrier(self) -> None:
        """Waits for all ranks."""
        dist.barrier(group=self._group)


class Alone(Control):
    """The side channel of a process without others."""

    def __init__(self) -> None:
        self.rank = 0
        self.world_size = 1

    def share(self, message: dict[str, Any] | None) -> dict[str, Any]:
        """The message itself."""
        return message or {}

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, in a stack of one."""
        return torch.stack([tensor])

    def barrier(self) -> None:
        """Nobody to wait for."""

    def _reduce(self, values: list[float], operation: Any) -> list[float]:
        return list(values)
