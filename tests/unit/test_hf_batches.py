"""Batches for the models of transformers, random and from files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autotune.errors import UsageError
from autotune.probe.hf_batches import (
    IGNORED,
    MOST_BATCHES,
    Batch,
    Images,
    Text,
    choose_sequence,
    count_labels,
    image_batches,
    text_batches,
)
from autotune.probe.task import Rank
from autotune.workload import Hf, HfTask

TEXT = Text(vocabulary=50, positions=None, avoid=None, mask=None)
IMAGES = Images(channels=3, height=8, width=6, classes=5, problem=None)
MICRO_BATCH = 2


def rank(number: int, world_size: int = 2) -> Rank:
    return Rank(rank=number, world_size=world_size, device=torch.device("cpu"))


def batches(
    task: HfTask = "causal-lm", place: Rank | None = None, text: Text = TEXT, **given: Any
) -> list[Batch]:
    micro_batch = given.pop("micro_batch", MICRO_BATCH)
    model = Hf(path="/nowhere", **{"sequence": 10, **given})
    return text_batches(task, text, model, micro_batch, 0, place or rank(0))


def saved(folder: Path, tokens: Any, name: str = "tokens.npy") -> str:
    np.save(folder / name, np.asarray(tokens))
    return str(folder / name)


def parquet(folder: Path, **columns: Any) -> str:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(
        pyarrow.table(columns), folder / "tokens.parquet"
    )
    return str(folder / "tokens.parquet")


def rows_of(found: Sequence[Batch]) -> list[list[int]]:
    return [row for batch in found for row in batch["input_ids"].tolist()]


def error_of(**given: Any) -> str:
    with pytest.raises(UsageError) as caught:
        batches(**given)
    return str(caught.value)


def test_eight_random_batches_differ_from_each_other_and_between_ranks() -> None:
    found = batches() + batches(place=rank(1))
    assert len(found) == 16
    assert len({str(batch) for batch in found}) == 16
    assert all(batch["input_ids"].shape == (MICRO_BATCH, 10) for batch in found)
    assert all(batch["input_ids"].dtype == torch.int64 for batch in found)


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm", "seq2seq-lm"])
def test_the_batches_of_a_rank_are_the_same_each_time(task: HfTask) -> None:
    assert str(batches(task)) == str(batches(task))


def test_random_batches_leave_out_the_token_for_padding() -> None:
    text = Text(vocabulary=3, positions=None, avoid=2, mask=None)
    assert {token for row in rows_of(batches(text=text)) for token in row} == {0, 1}


def test_a_causal_model_learns_every_token_but_the_first() -> None:
    batch = batches()[0]
    assert torch.equal(batch["input_ids"], batch["labels"])
    assert count_labels("causal-lm", batch) == MICRO_BATCH * 9


@pytest.mark.parametrize("mask", [None, 49])
def test_a_masked_model_learns_the_same_number_of_hidden_tokens_of_every_sample(
    mask: int | None,
) -> None:
    text = Text(vocabulary=50, positions=None, avoid=None, mask=mask)
    for batch in batches("masked-lm", text=text, sequence=100):
        counted = batch["labels"] != IGNORED
        assert counted.sum(1).tolist() == [15, 15]
        assert count_labels("masked-lm", batch) == 30
        changed = batch["input_ids"][counted] != batch["labels"][counted]
        assert changed.float().mean() > 0.8
        if mask is not None:
            assert set(batch["input_ids"][counted].tolist()) == {mask}


def test_a_masked_model_learns_something_of_the_shortest_sample() -> None:
    assert count_labels("masked-lm", batches("masked-lm", sequence=2)[0]) == MICRO_BATCH


def test_a_seq2seq_model_learns_what_comes_after_its_input(tmp_path: Path) -> None:
    data = saved(tmp_path, np.arange(40))
    batch = batches("seq2seq-lm", place=rank(0, 1), data=data, sequence=4)[0]
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert batch["labels"].tolist() == [[4, 5, 6, 7], [12, 13, 14, 15]]
    assert count_labels("seq2seq-lm", batch) == 8


@pytest.mark.parametrize(
    ("problem", "classes", "shape", "dtype"),
    [
        (None, 5, (2,), torch.int64),
        ("single_label_classification", 5, (2,), torch.int64),
        ("multi_label_classification", 5, (2, 5), torch.float32),
        (None, 1, (2, 1), torch.float32),
    ],
)
def test_images_have_labels_of_their_problem(
    problem: str | None, classes: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    images = Images(channels=3, height=8, width=6, classes=classes, problem=problem)
    found = image_batches(images, MICRO_BATCH, 0, rank(0))
    assert len(found) == 8
    for batch in found:
        assert batch["pixel_values"].shape == (2, 3, 8, 6)
        assert (batch["labels"].shape, batch["labels"].dtype) == (shape, dtype)
        assert count_labels("image-classification", batch) == MICRO_BATCH


def test_each_rank_sees_other_images() -> None:
    first, second = (image_batches(IMAGES, 1, 0, rank(number))[0] for number in (0, 1))
    assert not torch.equal(first["pixel_values"], second["pixel_values"])


def test_ranks_share_a_stream_out_between_them(tmp_path: Path) -> None:
    data = saved(tmp_path, np.arange(47) % 50)
    found = [rows_of(batches(place=rank(number), data=data, sequence=5)) for number in (0, 1)]
    starts = [[row[0] for row in rows] for rows in found]
    assert starts == [[0, 10, 20, 30], [5, 15, 25, 35]]  # two batches of two; the tail is left
    assert found[1][0] == [5, 6, 7, 8, 9]


def test_a_step_reads_the_same_samples_whatever_the_micro_batch(tmp_path: Path) -> None:
    data = saved(tmp_path, np.arange(400) % 50)
    one, four = (rows_of(batches(data=data, micro_batch=number)) for number in (1, 4))
    assert one == four


def test_a_long_file_is_read_up_to_64_batches(tmp_path: Path) -> None:
    data = saved(tmp_path, np.zeros(200_000, np.uint8))
    assert len(batches(data=data)) == MOST_BATCHES == 64


def test_a_sample_never_goes_over_the_end_of_a_row(tmp_path: Path) -> None:
    data = saved(tmp_path, np.arange(33).reshape(3, 11))
    found = rows_of(batches(place=rank(0, 1), data=data, sequence=5))
    assert [row[0] for row in found] == [0, 5, 11, 16, 22, 27]


def test_rows_set_the_sequence_where_the_sweep_file_leaves_it_open(tmp_path: Path) -> None:
    data = saved(tmp_path, np.zeros((8, 24), np.int32))
    assert batches(data=data, sequence=None)[0]["input_ids"].shape == (2, 24)
    assert batches("seq2seq-lm", data=data, sequence=None)[0]["labels"].shape == (2, 12)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int16", "int32", "int64"])
def test_a_bin_file_is_read_as_the_integers_it_holds(tmp_path: Path, dtype: str) -> None:
    file = tmp_path / "tokens.bin"
    np.arange(40).astype(dtype).tofile(file)
    found = batches(place=rank(0, 1), data=str(file), data_dtype=dtype, sequence=20)
    assert rows_of(found) == [list(range(20)), list(range(20, 40))]


def test_a_parquet_column_of_lists_of_one_length_has_rows(tmp_path: Path) -> None:
    data = parquet(tmp_path, input_ids=[[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]])
    found = batches(place=rank(0, 1), data=data, sequence=None)
    assert rows_of(found) == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]


@pytest.mark.parametrize(
    "tokens", [[[1], [2, 3, 4], [], [5, 6, 7], None, [8]], [1, 2, 3, 4, 5, 6, 7, 8]]
)
def test_other_parquet_columns_are_a_stream(tmp_path: Path, tokens: list[Any]) -> None:
    data = parquet(tmp_path, text=["x"] * len(tokens), ids=tokens)
    found = batches(place=rank(0, 1), data=data, data_column="ids", sequence=4)
    assert rows_of(found) == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_a_parquet_file_is_read_as_far_as_it_is_needed(tmp_path: Path) -> None:
    needed = MOST_BATCHES * MICRO_BATCH * 2  # samples of both ranks
    tokens = [[1, 2]] * (needed + 1023) + [[3, 4, 5]]  # what differs is in a later part
    data = parquet(tmp_path, input_ids=tokens)
    assert len(batches(data=data, sequence=2)) == MOST_BATCHES


def test_without_pyarrow_a_parquet_file_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    words = error_of(data=str(tmp_path / "x.parquet"))
    assert "needs pyarrow" in words
    assert "pip install pyarrow" in words


def test_a_parquet_file_without_the_column_is_refused_with_those_it_has(tmp_path: Path) -> None:
    words = error_of(data=parquet(tmp_path, text=["a"], ids=[1]))
    assert "no column 'input_ids'; it has text, ids; name one as data_column" in words


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (["a"], "holds string; allowed: integers, or lists of them"),
        ([[0.5]], "allowed: integers, or lists of them"),
        ([1, None], "has empty values"),
    ],
)
def test_a_parquet_column_of_other_things_is_refused(
    tmp_path: Path, column: list[Any], words: str
) -> None:
    assert words in error_of(data=parquet(tmp_path, input_ids=column))


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_bytes(b"no parquet at all")
    assert "x.parquet cannot be read: " in error_of(data=str(tmp_path / "x.parquet"))


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (np.zeros(40, np.float32), "holds float32; allowed: integers, which are token ids"),
        (np.zeros((4, 5, 6), np.int32), "has the shape (4, 5, 6); allowed: a stream"),
        (np.full(40, 50), "holds the token 50, but the model's vocab_size is 50"),
        (np.full(40, -1), "holds the token -1, but the model's vocab_size is 50"),
        (
            np.zeros(39, np.int32),
            "holds 3 samples of 10 tokens; 2 ranks with a micro-batch of 2 need 4. Give a longer",
        ),
        (np.zeros((5, 9), np.int32), "tokens is too long: a row of the data has room for 9"),
        (np.array([None]), "cannot be read: "),  # pickled
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, tokens: Any, words: str) -> None:
    assert words in error_of(data=saved(tmp_path, tokens))


def test_half_an_integer_in_a_bin_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"12345")
    words = error_of(data=str(tmp_path / "x.bin"))
    assert "has 5 bytes, which are no whole number of uint16" in words


def test_a_file_that_has_gone_is_refused(tmp_path: Path) -> None:
    assert "gone.npy cannot be read: " in error_of(data=str(tmp_path / "gone.npy"))


@pytest.mark.parametrize(
    ("asked", "positions", "room", "chosen"),
    [
        (None, None, None, 512),
        (None, 4096, None, 512),
        (None, 128, 256, 128),
        (None, 1024, 100, 100),
        (700, 1024, 800, 700),
        (4096, None, None, 4096),
    ],
)
def test_the_sequence_is_what_is_asked_for_or_what_there_is_room_for(
    asked: int | None, positions: int | None, room: int | None, chosen: int
) -> None:
    assert choose_sequence(asked, positions, room) == chosen


@pytest.mark.parametrize(
    ("asked", "positions", "words"),
    [
        (2000, 1024, "2000 tokens is too long: the model has 1024 positions; give a sequence of"),
        (1, 1024, "A sequence of 1 tokens is too short to train on; give at least 2"),
    ],
)
def test_a_sequence_that_does_not_fit_is_refused(asked: int, positions: int, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_sequence(asked, positions, None)
    assert words in str(caught.value)
