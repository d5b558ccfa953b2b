"""Norms of gradients that are in parts on several ranks."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from autotune.probe.attach.gradients import count_elements, gradient_norm
from autotune.probe.control import Alone

RANKS = 2


class Twins(Alone):
    """Two ranks that hold the same numbers."""

    world_size = RANKS

    def total(self, values: list[float]) -> list[float]:
        return [RANKS * value for value in values]


class Placement:
    def __init__(self, kind: str) -> None:
        self.is_partial = lambda: kind == "partial"
        self.is_replicate = lambda: kind == "replicate"


def parameter(values: list[float], *kinds: str, flat: bool = False) -> Any:
    """A parameter with this gradient on each rank; with kinds, of a DTensor on a mesh of twos."""
    gradient: Any = torch.tensor(values)
    if kinds:
        local = gradient
        gradient = SimpleNamespace(
            placements=[Placement(kind) for kind in kinds],
            device_mesh=SimpleNamespace(size=lambda dimension: 2),
            to_local=lambda: local,
        )
    made = SimpleNamespace(grad=gradient, requires_grad=True, numel=lambda: len(values))
    if flat:
        made._fsdp_flattened = True
    return made


def norm(*parameters: Any, factors: dict[int, float] | None = None) -> float | None:
    return gradient_norm(parameters, Twins(), factors or {})


def test_a_gradient_that_every_rank_holds_counts_once() -> None:
    assert norm(parameter([3.0, 4.0])) == pytest.approx(5.0)


def test_parts_of_a_gradient_are_summed_over_the_ranks() -> None:
    whole = 5.0 * math.sqrt(2)
    assert norm(parameter([3.0, 4.0], "shard")) == pytest.approx(whole)
    assert norm(parameter([3.0, 4.0], flat=True)) == pytest.approx(whole)
    assert norm(parameter([3.0, 4.0], "replicate", "shard")) == pytest.approx(5.0)
    assert norm(parameter([3.0], "shard"), parameter([4.0])) == pytest.approx(math.sqrt(34))


def test_a_gradient_that_is_yet_to_be_summed_has_no_norm() -> None:
    assert norm(parameter([3.0], "partial"), parameter([4.0])) is None
    assert norm() is None


def test_clipping_is_undone_parameter_by_parameter() -> None:
    one, other = parameter([3.0]), parameter([2.0])
    assert norm(one, other, factors={id(other): 0.5}) == pytest.approx(5.0)


def test_sparse_gradients_have_a_norm() -> None:
    sparse = parameter([0.0])
    sparse.grad = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([1.0, 2.0]), (3,), check_invariants=True
    )
    assert norm(sparse) == pytest.approx(3.0)


def test_the_elements_are_those_of_the_whole_gradient() -> None:
    unused: Any = SimpleNamespace(grad=None, requires_grad=True, numel=lambda: 7)
    frozen: Any = SimpleNamespace(grad=None, requires_grad=False, numel=lambda: 9)
    zero_3: Any = SimpleNamespace(grad=None, requires_grad=True, numel=lambda: 0, ds_numel=11)
    used = parameter([1.0, 2.0])

    def count(*parameters: Tensor) -> int:
        return count_elements(parameters, Twins())

    assert count(used, unused, frozen) == 2
    assert count(unused, frozen) == 7
    assert count(zero_3) == 11
    assert count(parameter([1.0, 2.0], flat=True), used) == 4 + 2
