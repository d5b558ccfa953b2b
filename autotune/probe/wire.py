"""Reads back, from the collectives that ran, how gradients crossed the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.outcome import Collective
from autotune.probe.engine import DTYPE_NAMES
from autotune.setup import Setup

# c10d operators that sum over ranks. What is all-gathered in a backward are parameters.
REDUCTIONS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "reduce_": "reduce",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
}
# Operators whose first argument is the output and second the input.
OUTPUT_FIRST = {
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
    "alltoall_",
    "alltoall_base_",
}
FLAG_ELEMENTS = 1  # overflow flags and norms: one number, not gradients


class WireTap(TorchDispatchMode):
    """Records every reduction that is dispatched while it is entered.

    Dispatch modes follow autograd into its threads, so reductions launched from hooks are
    seen on every device and backend.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self.elements = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Notes c10d reductions and lets everything pass."""
        if DTensor in types:
            return NotImplemented  # DTensor then calls its local operators, which are seen here
        name = func.__name__.split(".")[0]
        if func.namespace == "c10d" and name in REDUCTIONS:
            self._note(name, args)
        return func(*args, **(kwargs or {}))

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        tensors = list(_tensors(args[1] if name in OUTPUT_FIRST else args[0]))
        elements = sum(tensor.numel() for tensor in tensors)
        # Integers are DDP's map of the parameters that a backward used, where it looks for them.
        if elements <= FLAG_ELEMENTS or not tensors[0].is_floating_point():
            return
        dtype = tensors[0].dtype
        kind = (REDUCTIONS[name], DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch.")))
        self._calls[kind] += 1
        self._bytes[kind] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.elements += elements

    def collectives(self) -> tuple[Collective, ...]:
        """What was seen, the most bytes first."""
        return tuple(
            Collective(kind=kind, dtype=dtype, calls=self._calls[kind, dtype], bytes=size)
            for (kind, dtype), size in self._bytes.most_common()
        )


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def mismatch(tap: WireTap, setup: Setup, trainable_elements: int, world_size: int) -> str | None:
    """Says what was on the wire when it is not what the setup asks for.

    Args:
        tap: What one optimizer step reduced.
        setup: What was asked for.
        trainable_elements: Trainable elements of the whole model.
        world_size: Ranks; with one there is no wire.
    """
    if world_size == 1:
        return None
    seen = tap.collectives()
    if tap.elements < trainable_elements:
        return (
            f"Only {tap.elements} of {trainable_elements} gradient elements were reduced "
            "between the ranks in one optimizer step."
        )
    wrong = [item for item in seen if item.dtype != setup.grad_comm_dtype]
    if not wrong:
        return None
    found = ", ".join(f"{item.bytes} bytes of {item.dtype} by {item.kind}" for item in wrong)
    return f"The setup asks for {setup.grad_comm_dtype} gradients; on the wire were {found}."


def trainable_elements(model: torch.nn.Module) -> int:
    """Elements of the parameters that take a gradient, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
