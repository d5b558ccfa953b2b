"""Batches for the models of transformers: what each task needs, random or from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autotune.errors import UsageError
from autotune.probe.task import DISTINCT_BATCHES, Rank
from autotune.probe.token_file import TokenFile, open_tokens
from autotune.workload import Hf, HfTask

IGNORED = -100  # label of a position that does not count, in every loss of transformers
MASKED = 0.15  # of the tokens, as BERT was trained
USUAL_SEQUENCE = 512
SHORTEST = 2  # a causal model learns the second token from the first
MOST_BATCHES = 64  # read from a file by each rank; training runs go round them

Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What a language model reads.

    Attributes:
        vocabulary: Tokens are below it.
        positions: Longest sequence; None where there is no limit.
        avoid: Token that random batches leave out, because models treat it as padding.
        mask: Token that stands for a masked one; None to put a random one.
    """

    vocabulary: int
    positions: int | None
    avoid: int | None
    mask: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """What a classifier of images reads.

    Attributes:
        channels: Of an image.
        height: In pixels.
        width: In pixels.
        classes: Number of labels.
        problem: ``regression`` and ``multi_label_classification`` have labels that are not
            the number of a class.
    """

    channels: int
    height: int
    width: int
    classes: int
    problem: str | None


def text_batches(
    task: HfTask, text: Text, model: Hf, micro_batch: int, seed: int, place: Rank
) -> list[Batch]:
    """This rank's batches: 8 random ones, or up to 64 from the file; on the device.

    Every token of a file counts, as in packed text: none is taken for padding. Sample ``n`` of the
    file belongs to rank ``n % world_size``, so a step trains on the same samples whatever the
    micro-batch.

    Returns:
        ``input_ids`` and ``labels``, int64 of shape [micro_batch, sequence].

    Raises:
        UsageError: The sequence or the file does not fit the model.
    """
    generator = torch.Generator().manual_seed(seed + 1 + place.rank)
    # The second half of a sample is what the decoder of a seq2seq model learns to say.
    halves = 2 if task == "seq2seq-lm" else 1
    if model.data is None:
        sequence = choose_sequence(model.sequence, text.positions, None)
        size = (DISTINCT_BATCHES * micro_batch, halves * sequence)
        samples = _random_tokens(text, size, generator)
    else:
        most = MOST_BATCHES * micro_batch * place.world_size
        longest = halves * (model.sequence or USUAL_SEQUENCE)
        file = open_tokens(Path(model.data), model.data_dtype, model.data_column, most * longest)
        room = None if file.row_length is None else file.row_length // halves
        sequence = choose_sequence(model.sequence, text.positions, room)
        samples = _from_file(file, halves * sequence, micro_batch, place)
        _check_tokens(samples, text.vocabulary, model.data)
    parts = samples.split(micro_batch)
    batches = [_language_batch(task, part, text, generator) for part in parts]
    return [{name: value.to(place.device) for name, value in batch.items()} for batch in batches]


def choose_sequence(asked: int | None, positions: int | None, room: int | None) -> int:
    """The length of a sequence.

    Args:
        asked: By the sweep file.
        positions: Longest that the model takes.
        room: Longest that a row of the data holds.

    Raises:
        UsageError: What is asked for is longer than either, or both are too short to learn from.
    """
    limits = {"the model has {} positions": positions, "a row of the data has room for {}": room}
    known = {words: limit for words, limit in limits.items() if limit is not None}
    for words, limit in known.items():
        if asked is not None and asked > limit:
            raise UsageError(
                f"The sequence of {asked} tokens is too long: {words.format(limit)}; give a "
                f"sequence of at most {limit}, or another model or file."
            )
    sequence = asked or min([USUAL_SEQUENCE, *known.values()])
    if sequence < SHORTEST:
        raise UsageError(
            f"A sequence of {sequence} tokens is too short to train on; give at least {SHORTEST}, "
            "and data with rows as long."
        )
    return sequence


def _random_tokens(text: Text, size: tuple[int, int], generator: torch.Generator) -> Tensor:
    tokens = torch.randint(text.vocabulary, size, generator=generator)
    if text.avoid is not None:
        tokens[tokens == text.avoid] = (text.avoid + 1) % text.vocabulary
    return tokens


def _from_file(file: TokenFile, length: int, micro_batch: int, place: Rank) -> Tensor:
    """This rank's samples, whole batches of them; as many on every rank."""
    there = file.count(length)
    batches = min(there // place.world_size // micro_batch, MOST_BATCHES)
    if batches == 0:
        raise UsageError(
            f"The data {file.path} holds {there} samples of {length} tokens; {place.world_size} "
            f"ranks with a micro-batch of {micro_batch} need {place.world_size * micro_batch}. "
            "Give a longer file or a shorter sequence."
        )
    numbers = range(place.rank, there, place.world_size)[: batches * micro_batch]
    return file.samples(length, numbers)


def _check_tokens(samples: Tensor, vocabulary: int, path: str) -> None:
    low, high = int(samples.min()), int(samples.max())
    if low < 0 or high >= vocabulary:
        raise UsageError(
            f"The data {path} holds the token {low if low < 0 else high}, but the model's "
            f"vocab_size is {vocabulary}; give the file of this model's tokenizer, and for a "
            ".bin file its own data_dtype."
        )


def _language_batch(task: HfTask, samples: Tensor, text: Text, generator: torch.Generator) -> Batch:
    if task == "causal-lm":
        return {"input_ids": samples, "labels": samples.clone()}
    if task == "seq2seq-lm":
        inputs, labels = samples.chunk(2, dim=1)
        return {"input_ids": inputs.contiguous(), "labels": labels.contiguous()}
    return _masked_batch(samples, text, generator)


def _masked_batch(samples: Tensor, text: Text, generator: torch.Generator) -> Batch:
    """As many masked tokens in every sample, so that all batches count alike."""
    number = max(1, round(MASKED * samples.shape[1]))
    picked = torch.rand(samples.shape, generator=generator).topk(number, dim=1).indices
    masked = torch.zeros_like(samples, dtype=torch.bool).scatter_(1, picked, True)
    put = _random_tokens(text, (samples.shape[0], samples.shape[1]), generator)
    if text.mask is not None:
        put = torch.full_like(samples, text.mask)
    return {
        "input_ids": torch.where(masked, put, samples),
        "labels": torch.where(masked, samples, IGNORED),
    }


def image_batches(images: Images, micro_batch: int, seed: int, place: Rank) -> list[Batch]:
    """This rank's 8 random batches, on the device.

    Returns:
        ``pixel_values``, float32 of shape [micro_batch, channels, height, width], and ``labels``.
    """
    generator = torch.Generator().manual_seed(seed + 1 + place.rank)
    size = (micro_batch, images.channels, images.height, images.width)
    batches = [
        {
            "pixel_values": torch.randn(size, generator=generator),
            "labels": _image_labels(images, micro_batch, generator),
        }
        for _ in range(DISTINCT_BATCHES)
    ]
    return [{name: value.to(place.device) for name, value in batch.items()} for batch in batches]


def _image_labels(images: Images, micro_batch: int, generator: torch.Generator) -> Tensor:
    several = (micro_batch, images.classes)
    if images.problem == "multi_label_classification":
        return torch.randint(2, several, generator=generator).float()
    if images.problem == "regression" or images.classes == 1:
        return torch.randn(several, generator=generator)
    return torch.randint(images.classes, (micro_batch,), generator=generator)


def count_labels(task: HfTask, batch: Mapping[str, Any]) -> int:
    """Labels of a batch that the loss counts; images count as one each."""
    labels = batch["labels"]
    if task == "image-classification":
        return int(labels.shape[0])
    # A causal model predicts the next token, so nothing predicts the first.
    counted = labels[:, 1:] if task == "causal-lm" else labels
    return int((counted != IGNORED).sum())
