"""TrainingArguments, by transformers' own parsers and what its Trainer makes of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.nn.parallel import DistributedDataParallel
from transformers import HfArgumentParser, Trainer, TrainingArguments, training_args
from transformers.integrations.deepspeed import propagate_args_to_deepspeed

from autotune.consumer.accelerate import installed, sharded_by
from autotune.consumer.dtypes import float32_products
from autotune.consumer.modules import Model, one_rank, replicated, scale_of

NAME = "training_args"
CAPABLE = ("is_torch_bf16_gpu_available", "is_torch_tf32_available")
"""What transformers asks the hardware; here the parsers are asked."""
HIDDEN = 64
"""Of the model that "auto" values of a user's own JSON are made for; no knob comes from it."""


def read(folder: Path) -> dict[str, Any]:
    """What a Trainer does with the arguments, which all three forms have to say alike."""
    installed(folder)
    with capable():
        (args,) = parser().parse_yaml_file(folder / f"{NAME}.yaml")
        (from_json,) = parser().parse_json_file(folder / f"{NAME}.json")
        (from_words,) = parser().parse_args_into_dataclasses(
            flags(folder / f"{NAME}.flags"), look_for_args_file=False
        )
        for name, other in (("json", from_json), ("flags", from_words)):
            demand_equal(args, other, name)
        return effective(args, folder)


def parser(*classes: type) -> Any:
    """As scripts make it: of TrainingArguments, unless they have other classes."""
    make: Any = HfArgumentParser
    return make(classes or (TrainingArguments,))


@contextmanager
def capable() -> Iterator[None]:
    """On any machine, as if it could do bf16 and TF32."""
    with ExitStack() as stack:
        for name in CAPABLE:
            stack.enter_context(mock.patch.object(training_args, name, return_value=True))
        yield


def flags(path: Path) -> list[str]:
    """The array that a shell has once it has sourced the file."""
    line = 'source "$1" && printf "%s\\0" "${training_args[@]}"'
    shell = ["bash", "-euc", line, "bash", str(path)]
    said = subprocess.run(shell, capture_output=True, check=True).stdout
    return said.decode().split("\0")[:-1]


def demand_equal(one: Any, other: Any, form: str) -> None:
    """Raises ValueError where two parses differ."""
    for field in fields(one):
        values = [getattr(one, field.name), getattr(other, field.name)]
        if field.name == "deepspeed" and None not in values:
            values = [Path(value).resolve() for value in values]
        if values[0] != values[1]:
            raise ValueError(f"{field.name} is {values[0]!r}, but {values[1]!r} in {NAME}.{form}")


def effective(args: Any, folder: Path) -> dict[str, Any]:
    """Every knob that a Trainer with these arguments determines.

    What a launcher says is in the environment, and the module's ``install()`` was called.
    """
    by_trainer = bool(args.gradient_checkpointing)
    found = _by_backend(args, folder)
    if found["precision"] == "fp16" and "loss_scale" not in found:
        found["loss_scale"] = scale_of(torch.amp.GradScaler("cpu"))
    if found["precision"] == "fp32":
        found["precision"] = float32_products()
    by_plugin = bool(found.get("activation_checkpointing"))
    if by_trainer and by_plugin:
        raise ValueError("the Trainer refuses to recompute activations in two ways")
    return {
        **found,
        "activation_checkpointing": by_trainer or by_plugin,
        "micro_batch": args.per_device_train_batch_size,
        "gradient_accumulation": args.gradient_accumulation_steps,
    }


def _by_backend(args: Any, folder: Path) -> dict[str, Any]:
    if args.deepspeed_plugin is not None:
        return _by_deepspeed(args)
    with one_rank(folder):
        plugin = fsdp_plugin(args)
        return _replicated(args) if plugin is None else sharded_by(plugin)


def _by_deepspeed(args: Any) -> dict[str, Any]:
    """The JSON, filled as the Trainer fills it before it hands it to DeepSpeed."""
    from autotune.consumer.deepspeed import effective as of_deepspeed

    plugin = args.deepspeed_plugin
    plugin.set_mixed_precision(args.mixed_precision)
    if getattr(args, "hf_deepspeed_config", None) is None:
        # The launcher's own file: the Trainer fills it in later.
        state = SimpleNamespace(deepspeed_plugin=plugin)
        fill: Any = propagate_args_to_deepspeed
        fill(SimpleNamespace(state=state), args)
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=HIDDEN))
    plugin.hf_ds_config.trainer_config_finalize(args, model, num_training_steps=100)
    return of_deepspeed(plugin.hf_ds_config.config)


def fsdp_plugin(args: Any) -> Any:
    """What the Trainer hands to its Accelerator, or what this makes of the environment."""
    if args.fsdp_plugin_args is None and os.environ.get("ACCELERATE_USE_FSDP") != "true":
        return None
    plugin = FullyShardedDataParallelPlugin(**(args.fsdp_plugin_args or {}))
    if args.mixed_precision != "no":
        plugin.set_mixed_precision(args.mixed_precision)
    return plugin


def _replicated(args: Any) -> dict[str, Any]:
    trainer: Any = SimpleNamespace(args=args, model=Model())
    (handler,) = Trainer._build_accelerator_args(trainer)["kwargs_handlers"]
    found = replicated(DistributedDataParallel(Model(), **handler.to_kwargs()))
    mixed = args.mixed_precision
    return {**found, "precision": "fp32" if mixed == "no" else mixed}
