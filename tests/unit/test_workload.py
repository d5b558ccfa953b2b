"""Batches of any shape, on the device and counted."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from autotune.probe.workload import count_tokens, move

CPU = torch.device("cpu")
TOKENS = torch.zeros(2, 5, dtype=torch.long)


class Pair(NamedTuple):
    first: torch.Tensor
    second: str


@pytest.mark.parametrize(
    "batch",
    [TOKENS, [TOKENS, "x"], (TOKENS, 1), {"a": [TOKENS], "b": None}, Pair(TOKENS, "x"), "text"],
)
def test_a_moved_batch_keeps_its_shape_and_type(batch: Any) -> None:
    moved = move(batch, CPU)
    assert type(moved) is type(batch)
    assert str(moved) == str(batch)


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        ({"labels": torch.zeros(2, 9, dtype=torch.long), "input_ids": TOKENS}, 10),
        ((torch.zeros(2, 7), TOKENS), 10),
        (torch.zeros(3, 8), 3),
        ({"pixels": torch.zeros(4, 3, 8, 8), "labels": torch.zeros(4, dtype=torch.long)}, 4),
        ([], 1),
    ],
)
def test_tokens_are_input_ids_else_integers_else_samples(batch: Any, tokens: int) -> None:
    assert count_tokens(batch) == tokens
