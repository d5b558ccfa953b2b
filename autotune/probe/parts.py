"""Whole tensors cut into the parts that each rank keeps, and sums over all parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autotune.probe.workload import Rank


def own_part(whole: Tensor, place: Rank) -> Tensor:
    """This rank's part of a tensor that every rank holds, cut along its first dimension.

    The cut is that of FSDP2: equal chunks, the last ones shorter or empty. A scalar is rank 0's.
    """
    chunks = whole.reshape(-1) if whole.dim() == 0 else whole
    parts = chunks.chunk(place.world_size)
    return parts[place.rank] if place.rank < len(parts) else chunks[:0]


@dataclass(frozen=True, slots=True)
class Products:
    """Sums over the elements of one tensor, for a gradient g and its reference r.

    Attributes:
        cross: Of ``g r``.
        own: Of ``g g``.
        reference: Of ``r r``.
        difference: Of ``(g - r)(g - r)``.
        vanished: Elements that are zero in g only.
        vanished_reference: Of ``r r`` over these.
        visible: Elements of r that the weights can show.
    """

    cross: float = 0.0
    own: float = 0.0
    reference: float = 0.0
    difference: float = 0.0
    vanished: float = 0.0
    vanished_reference: float = 0.0
    visible: float = 0.0

    def values(self) -> list[float]:
        """In the order of the attributes."""
        return [getattr(self, name) for name in self.__slots__]

    def __add__(self, other: Products) -> Products:
        pairs = zip(self.values(), other.values(), strict=True)
        return Products(*(one + two for one, two in pairs))


def products(gradient: Tensor, reference: Tensor, visible: Tensor) -> Products:
    """The sums over one part, in float64."""
    own, true = gradient.double().flatten(), reference.double().flatten()
    vanished = (own == 0) & visible.flatten()
    return Products(
        cross=float(own @ true),
        own=float(own @ own),
        reference=float(true @ true),
        difference=float(torch.sum((own - true) ** 2)),
        vanished=float(vanished.sum()),
        vanished_reference=float(torch.sum(true[vanished] ** 2)),
        visible=float(visible.sum()),
    )
