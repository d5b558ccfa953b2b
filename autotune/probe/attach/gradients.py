"""The norm of the whole gradient that an optimizer is about to apply, and its elements."""

from __future__ import annotations

import functools
import gc
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autotune.probe.control import Control

FLATTENED = "_fsdp_flattened"  # what FSDP1 marks its parameters with


def parameters_of(optimizer: Any) -> Iterator[Tensor]:
    """All parameters of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]


def count_elements(parameters: Iterable[Tensor], control: Control) -> int:
    """Elements of the whole gradient, on all ranks together.

    Of parameters that take a gradient those count that have one now: others may not have been
    used in this step, and FSDP2 does not reduce them. DeepSpeed takes the gradients away, and
    then all count. Parameters that FSDP1 keeps in replicas are not counted.
    """
    taking = [item for item in parameters if item.requires_grad]
    used = [item for item in taking if item.grad is not None] or taking
    whole = sum(_elements(item) for item in used if not _is_flat(item))
    flat = [float(item.numel()) for item in used if _is_flat(item)]
    (parts,) = control.total([sum(flat)])
    return whole + (0 if flat and _is_replicated() else int(parts))


def _elements(parameter: Any) -> int:
    """ZeRO-3 leaves an empty tensor behind, and says beside it how many elements it stands for."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


@dataclass(frozen=True, slots=True)
class Part:
    """What this rank holds of one parameter's gradient.

    Attributes:
        values: The elements.
        weight: What their norm is multiplied by.
        copies: Ranks that hold the same elements; None if all do.
    """

    values: Tensor
    weight: float
    copies: int | None


@torch.no_grad()
def gradient_norm(
    parameters: Iterable[Tensor], control: Control, factors: Mapping[int, float]
) -> float | None:
    """The norm over all ranks; every rank calls it. None where it cannot be had.

    Gradients of DDP and of a single process are equal on all ranks. Those of FSDP2 are DTensors,
    whose parts are summed; those of FSDP1 are flat parts.

    Args:
        parameters: Whose gradients they are.
        control: Side channel between the ranks.
        factors: What gradients were multiplied by, by the id of their parameter; it is undone.
    """
    with_one = [item for item in parameters if item.grad is not None]
    parts = [_part(item, factors.get(id(item), 1.0)) for item in with_one]
    unknown = any(part is None for part in parts)
    unknown |= any(_is_flat(item) for item in with_one) and _is_replicated()
    known = [part for part in parts if part is not None]
    own = _square([part for part in known if part.copies is not None])
    missing, summed, had = control.total([float(unknown), own, float(len(parts))])
    if missing or not had:
        return None
    return math.sqrt(summed + _square([part for part in known if part.copies is None]))


def _part(parameter: Tensor, factor: float) -> Part | None:
    """None if the ranks have yet to add their parts up."""
    gradient: Any = parameter.grad
    weight = 1 / factor if factor else math.inf
    if not hasattr(gradient, "placements"):
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        return Part(values, weight, 1 if _is_flat(parameter) else None)
    if any(placement.is_partial() for placement in gradient.placements):
        return None
    mesh, placements = gradient.device_mesh, enumerate(gradient.placements)
    copies = math.prod(mesh.size(index) for index, item in placements if item.is_replicate())
    return Part(gradient.to_local(), weight, copies)


def _is_flat(parameter: Tensor) -> bool:
    return bool(getattr(parameter, FLATTENED, False))


def _square(parts: Sequence[Part]) -> float:
    """Sum of squares; one transfer from each device."""
    norms: dict[torch.device, list[Tensor]] = {}
    for part in parts:
        norm = torch.linalg.vector_norm(part.values, dtype=torch.float32)
        scaled = norm * (part.weight / math.sqrt(part.copies or 1))
        norms.setdefault(norm.device, []).append(scaled)
    return math.fsum(float(torch.stack(each).double().square().sum()) for each in norms.values())


@functools.cache
def _is_replicated() -> bool:
    """Whether some FSDP1 module is sharded over a part of the ranks only, or over none.

    Its parameters do not say so; the modules do, which have to be looked for once.
    """
    module = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(module, "FullyShardedDataParallel", None)
    if kind is None:
        return False
    # isinstance() would ask objects of others for their class, and some answer with an error.
    found = [item for item in gc.get_objects() if issubclass(type(item), kind)]
    names = {item.sharding_strategy.name for item in found}
    return not names <= {"FULL_SHARD", "SHARD_GRAD_OP"}
