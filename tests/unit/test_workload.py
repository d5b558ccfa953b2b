"""Batches of any shape, on the device and counted."""

from __future__ import annotations

from collections import UserDict
from typing import Any, NamedTuple

import pytest
import torch

from autotune.probe.workload import count_tokens, move

CPU = torch.device("cpu")
TOKENS = torch.zeros(2, 5, dtype=torch.long)


class Pair(NamedTuple):
    first: torch.Tensor
    second: str


class Encoded(UserDict[str, torch.Tensor]):
    """As a tokenizer returns it: no dict, but it knows how to move."""

    moved_to: torch.device | None = None

    def to(self, device: torch.device) -> Encoded:
        self.moved_to = device
        return self


def test_what_a_tokenizer_returns_moves_itself_and_is_counted() -> None:
    batch = Encoded(input_ids=TOKENS, labels=TOKENS[:, :2])
    assert move([batch], CPU)[0].moved_to == CPU
    assert count_tokens(batch) == 10


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
