"""By how much a script's own clipping has made gradients smaller, to tell their norm before it.

DeepSpeed tells the norm before its clipping. A norm after it would hide a gradient that is too
large, and could not be compared with DeepSpeed's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

EPSILON = 1e-6  # what torch adds to the norm before it divides by it


class Clips:
    """The calls of torch's clipping since the last step."""

    def __init__(self) -> None:
        self._calls: list[tuple[list[int], float, Any]] = []

    def clear(self) -> None:
        """A new step begins."""
        self._calls.clear()

    def note(self, parameters: Iterable[Tensor], most: float, norm: Any) -> None:
        """Notes a call; does not wait for the device.

        Args:
            parameters: Whose gradients were clipped together.
            most: The norm that they may have.
            norm: The norm that they had.
        """
        self._calls.append(([id(item) for item in parameters], most, norm))

    def factors(self) -> Mapping[int, float]:
        """What gradients were multiplied by, by the id of their parameter; waits for the device."""
        found: dict[int, float] = {}
        for parameters, most, norm in self._calls:
            total = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
            factor = min(1.0, most / (total + EPSILON))
            found.update({item: found.get(item, 1.0) * factor for item in parameters})
        return found


def install_clip_hooks(clips: Clips, wanted: Callable[[], bool]) -> None:
    """Watches ``clip_grad_norm_``, and what those call that know the norm already.

    Args:
        clips: Are told.
        wanted: Whether the gradients of this step are looked at.
    """
    utils: Any = torch.nn.utils
    clip, clip_with_norm = utils.clip_grad_norm_, utils.clip_grads_with_norm_

    @functools.wraps(clip)
    def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        if not wanted():
            return clip(parameters, max_norm, *args, **kwargs)
        listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        norm = clip(listed, max_norm, *args, **kwargs)
        clips.note(listed, float(max_norm), norm)
        return norm

    @functools.wraps(clip_with_norm)
    def clip_grads_with_norm_(
        parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any
    ) -> None:
        listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        clip_with_norm(listed, max_norm, total_norm, *args, **kwargs)
        if wanted():
            clips.note(listed, float(max_norm), total_norm)

    utils.clip_grad_norm_ = clip_grad_norm_
    utils.clip_grads_with_norm_ = clip_grads_with_norm_
