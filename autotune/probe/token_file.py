"""Tokens from a file, cut into samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from autotune.errors import UsageError

ROWS_AT_ONCE = 1024  # of a Parquet file


@dataclass(frozen=True, slots=True)
class TokenFile:
    """What a file holds.

    Attributes:
        path: The file.
        tokens: A stream of shape [tokens], or rows of shape [rows, row length]; integers,
            mapped into memory where the format allows it.
    """

    path: Path
    tokens: npt.NDArray[Any]

    @property
    def row_length(self) -> int | None:
        """Tokens of a row; None for a stream."""
        return self.tokens.shape[1] if self.tokens.ndim == 2 else None

    def count(self, length: int) -> int:
        """Samples of so many tokens; none goes over the end of a row."""
        *rows, row = self.tokens.shape
        return math.prod(rows) * (int(row) // length)

    def samples(self, length: int, numbers: Sequence[int]) -> Tensor:
        """Samples by their numbers; int64 of shape [samples, length], on the CPU."""
        rows = self.tokens if self.tokens.ndim == 2 else self.tokens[np.newaxis]
        per_row = rows.shape[1] // length
        starts = [(number // per_row, number % per_row * length) for number in numbers]
        picked = [rows[row, start : start + length] for row, start in starts]
        return torch.from_numpy(np.stack(picked).astype(np.int64))


def open_tokens(path: Path, dtype: str, column: str, most: int) -> TokenFile:
    """Opens a tokenised file.

    Args:
        path: ``.npy`` with one or two dimensions, ``.bin`` of raw integers, or ``.parquet``.
        dtype: Integers of a ``.bin`` file, in this machine's byte order.
        column: Column of a ``.parquet`` file: a token a row, or a list of them. Lists of equal
            length are rows, others are joined to a stream.
        most: Tokens after which no more of a ``.parquet`` file is read.

    Raises:
        UsageError: It cannot be read, has no such column, or holds no integers.
    """
    try:
        if path.suffix == ".npy":
            return TokenFile(path, _npy(path))
        if path.suffix == ".bin":
            return TokenFile(path, _raw(path, dtype))
        return TokenFile(path, _parquet(path, column, most))
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(f"The data {path} cannot be read: {error}") from error


def _npy(path: Path) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.dtype.kind not in "iu":
        raise UsageError(
            f"The data {path} holds {array.dtype}; allowed: integers, which are token ids."
        )
    if array.ndim not in (1, 2):
        raise UsageError(
            f"The data {path} has the shape {array.shape}; allowed: a stream of tokens with one "
            "dimension, or rows of tokens with two."
        )
    return array


def _raw(path: Path, dtype: str) -> npt.NDArray[Any]:
    kind, size = np.dtype(dtype), path.stat().st_size
    if size == 0 or size % kind.itemsize:
        raise UsageError(
            f"The data {path} has {size} bytes, which are no whole number of {kind}; give its "
            "own data_dtype."
        )
    return np.memmap(path, dtype=kind, mode="r")


def _parquet(path: Path, column: str, most: int) -> npt.NDArray[Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            f"The data {path} needs pyarrow, which cannot be imported ({error}); run "
            "`pip install pyarrow`, or give a .npy or .bin file."
        ) from error
    with pyarrow.parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        if column not in schema.names:
            raise UsageError(
                f"The data {path} has no column {column!r}; it has {', '.join(schema.names)}; "
                "name one as data_column."
            )
        kind = schema.field(column).type
        kinds = pyarrow.types
        lists = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
        listed = any(is_one(kind) for is_one in lists)
        if not kinds.is_integer(kind.value_type if listed else kind):
            raise UsageError(
                f"The column {column} of {path} holds {kind}; allowed: integers, or lists of them."
            )
        return _column(file, column, listed, most)


def _column(file: Any, column: str, listed: bool, most: int) -> npt.NDArray[Any]:
    parts: list[npt.NDArray[Any]] = []
    lengths: set[int] = set()
    found = 0
    for batch in file.iter_batches(columns=[column], batch_size=ROWS_AT_ONCE):
        values = batch.column(0)
        if listed:
            lengths.update(value or 0 for value in values.value_lengths().to_pylist())
            values = values.flatten()
        if values.null_count:
            raise UsageError(f"The column {column} has empty values; fill or drop them.")
        parts.append(values.to_numpy(zero_copy_only=False))
        found += len(parts[-1])
        if found >= most:
            break
    stream = np.concatenate(parts) if parts else np.empty(0, np.int64)
    equal = len(lengths) == 1 and lengths != {0}
    return stream.reshape(-1, lengths.pop()) if equal else stream
