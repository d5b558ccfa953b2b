"""The raw loss of a backward pass, before any scaling for fp16, without waiting for the device."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor


class Scaled:
    """Remembers what a loss was before a scaler multiplied it.

    Dividing again would do, too, but for losses that the scale has made infinite.
    """

    def __init__(self) -> None:
        self._made: weakref.ref[Tensor] | None = None
        self._raw: Tensor | None = None

    def remember(self, made: Any, raw: Any) -> None:
        """Notes the scaler's output and its input."""
        if isinstance(made, Tensor) and isinstance(raw, Tensor):
            self._made, self._raw = weakref.ref(made), copied(raw)

    def raw(self, given: Any) -> Tensor | None:
        """The input if ``given`` is the output that was noted last."""
        same = self._made is not None and self._made() is given
        return self._raw if same else None


def copied(value: Tensor) -> Tensor:
    """A copy of the value: a replayed CUDA graph may write over the tensor itself."""
    return value.detach().clone()


def value_of(tensors: Any, gradients: Any = None) -> Tensor | None:
    """The number whose gradient a call of backward takes, still on its device.

    That is the loss itself. Of a tensor that comes with a gradient it is their product, which
    has the same gradient. None where nothing is known, as of graph edges.

    Args:
        tensors: First argument of ``torch.autograd.backward``.
        gradients: Its second.
    """
    given = _listed(tensors)
    weights = _listed(gradients) if gradients is not None else [None] * len(given)
    parts = [
        _one(tensor.detach(), weight)
        for tensor, weight in zip(given, weights, strict=False)
        if isinstance(tensor, Tensor)
    ]
    return sum(parts[1:], parts[0]) if parts else None


def _one(tensor: Tensor, weight: Tensor | None) -> Tensor:
    if weight is not None:
        return (tensor * weight.detach()).sum()
    return tensor.clone() if tensor.numel() == 1 else tensor.sum()


def _listed(value: Any) -> Sequence[Any]:
    return [value] if isinstance(value, Tensor) or not isinstance(value, Sequence) else value
