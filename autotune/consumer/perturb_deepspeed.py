"""Which keys matter to ``DeepSpeedConfig``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from deepspeed.runtime import config as runtime

from autotune.consumer.perturb import Config, perturb, plain, without

TRAIN, MICRO, STEPS = BATCH = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)


def read(
    folder: Path, config: Config, keys: Sequence[Sequence[str]], drop: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """Changes each key of a configuration.

    Args:
        folder: Where relative paths start.
        config: The configuration; without its ``drop`` it is what is changed.
        keys: Paths of the keys to change.
        drop: Paths of keys that DeepSpeed is known to refuse.
    """
    base = without(config, drop)
    ranks = _ranks(base)
    return perturb(base, keys, lambda changed: observe(changed, ranks))


def observe(config: Config, ranks: int = 1) -> Any:
    """Every field that DeepSpeed makes of a configuration, "auto" filled in as scripts do it."""
    with (
        mock.patch.object(runtime.dist, "get_rank", return_value=0),
        mock.patch.object(runtime.dist, "get_world_size", return_value=ranks),
    ):
        parsed = vars(runtime.DeepSpeedConfig(_filled(config)))
    return {name: plain(value) for name, value in parsed.items() if name != "_param_dict"}


def _filled(config: Config) -> Config:
    sizes = {key: value for key, value in config.items() if key in BATCH and value != "auto"}
    others = {key: value for key, value in config.items() if key not in BATCH}
    if others.get("gradient_clipping") == "auto":
        others["gradient_clipping"] = 1.0
    if TRAIN not in sizes:
        sizes.setdefault(MICRO, 1)
    return {**others, **sizes}


def _ranks(config: Mapping[str, Any]) -> int:
    """As many as make the batch sizes of the file multiply."""
    sizes = [config.get(name) for name in BATCH]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return 1
    train, micro, steps = sizes
    sequence = config.get("sequence_parallel_size", 1)
    ranks = int(train) // (int(micro) * int(steps)) if train and micro and steps else 1
    return max(ranks, 1) * (sequence if isinstance(sequence, int) else 1)
