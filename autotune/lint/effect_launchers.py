"""What a file of accelerate or the arguments of transformers effectively do."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.configs.accelerate import mixed_precision
from autotune.configs.accelerate_deepspeed import compose
from autotune.configs.deepspeed_says import ACCUMULATION, MICRO
from autotune.configs.texts import block
from autotune.configs.values import AUTO, as_int
from autotune.lint.checks_accelerate import NAMED
from autotune.lint.checks_fsdp import plain, version_of
from autotune.lint.document import Unreadable, read_document
from autotune.lint.effect import SCRIPT, By, Effect
from autotune.lint.effect_deepspeed import deepspeed_effects
from autotune.lint.effect_fsdp import DDP_BUCKET_BYTES, ddp_effects, fsdp_effects
from autotune.lint.finding import About

Config = Mapping[str, Any]
BATCH = 8
"""``per_device_train_batch_size`` of transformers where nothing is said."""


def accelerate_effects(config: Config, folder: Path) -> Iterator[Effect]:
    """Every aspect.

    Args:
        config: The configuration.
        folder: Where a DeepSpeed file that it names is looked for.
    """
    kind, mixed = config.get("distributed_type"), mixed_precision(config)
    precision = {"no": "fp32", "fp8": None}.get(mixed or "", mixed)
    if kind == "DEEPSPEED":
        yield from _deepspeed(block(config, "deepspeed_config"), mixed, folder)
        return
    if kind == "FSDP":
        values = {plain(key): value for key, value in block(config, "fsdp_config").items()}
        strategy = values.get("sharding_strategy")
        version = as_int(values.get("version", 1))
        named = None if strategy is None else _strategy(strategy)
        yield from _fp8(fsdp_effects(values, precision, version, strategy=named), mixed)
    elif kind in ("NO", None, False):
        yield Effect("sharding", 0, "file", "a single process: no gradients are sent")
    else:
        yield from _fp8(ddp_effects(precision, DDP_BUCKET_BYTES, "default"), mixed)
    text = f"{SCRIPT}: accelerate's file does not say it"
    yield Effect("batch", None, "script", text)


def _strategy(value: Any) -> str:
    names = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
    number = as_int(value)
    return names[number - 1] if number in range(1, 6) and number else str(value).upper()


def _fp8(effects: Iterator[Effect], mixed: str | None) -> Iterator[Effect]:
    for effect in effects:
        if mixed == "fp8" and effect.aspect == "precision":
            yield Effect("precision", "fp8", "file", "fp8, as fp8_config says, around bf16")
        elif mixed == "fp8" and effect.aspect == "wire":
            yield Effect("wire", None, "unclear", "bf16 with FSDP, fp32 with DDP")
        else:
            yield effect


def _deepspeed(values: Config, mixed: str | None, folder: Path) -> Iterator[Effect]:
    if NAMED not in values:
        stage = as_int(values.get("zero_stage", 2))
        usual = values if stage in (0, 1, 2, 3) else {**values, "zero_stage": 2}
        yield from deepspeed_effects(compose(usual, mixed), auto=True)
        return
    named = str(values[NAMED])
    found = read_document(folder / named)
    if isinstance(found, Unreadable):
        text = f"as {named} says, which is not here"
        yield Effect("sharding", None, "unclear", text)
        return
    for effect in deepspeed_effects({ACCUMULATION: 1, **found.data}, auto=True):
        yield replace(effect, text=f"{effect.text} ({named})")


def huggingface_effects(config: Config, folder: Path, about: About) -> Iterator[Effect]:
    """Every aspect.

    Args:
        config: The arguments.
        folder: Where files that they name are looked for.
        about: What is known.
    """
    precision = _precision(config)
    if config.get("deepspeed"):
        yield from _filled(config, folder)
        return
    if config.get("fsdp"):
        values = {plain(key): value for key, value in block(config, "fsdp_config").items()}
        if isinstance(config.get("fsdp_config"), str):
            found = read_document(folder / str(config["fsdp_config"]))
            if not isinstance(found, Unreadable):
                values = {plain(key): value for key, value in found.data.items()}
        said = _words(config["fsdp"], values)
        version = version_of(values, about)
        yield from fsdp_effects(said, precision, version, strategy=None)
    else:
        megabytes = as_int(config.get("ddp_bucket_cap_mb"))
        size = DDP_BUCKET_BYTES if megabytes is None else megabytes * 2**20
        by: By = "default" if megabytes is None else "file"
        for effect in ddp_effects(precision, size, by):
            if effect.aspect == "sharding":
                text = "DDP, unless a launcher's file or one of its own says otherwise"
                yield Effect("sharding", 0, "default", text)
            else:
                yield effect
    yield _batch(config)


def _words(fsdp: Any, values: Config) -> Config:
    """``fsdp_config`` with what the words of old in ``fsdp`` add to it."""
    said = fsdp.split() if isinstance(fsdp, str) else fsdp if isinstance(fsdp, list) else []
    added: dict[str, Any] = {}
    if "shard_grad_op" in said:
        added["reshard_after_forward"] = False
    if "offload" in said:
        added["cpu_offload"] = True
    return {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", **added, **values}


def _precision(config: Config) -> str | None:
    if config.get("fp16") and config.get("bf16"):
        return None
    if config.get("fp16") or config.get("bf16"):
        return "fp16" if config.get("fp16") else "bf16"
    return None if "bf16" not in config and "fp16" not in config else "fp32"


def _filled(config: Config, folder: Path) -> Iterator[Effect]:
    """DeepSpeed's own, its "auto" values filled in from the arguments."""
    given = config["deepspeed"]
    if isinstance(given, str):
        found = read_document(folder / given)
        if isinstance(found, Unreadable):
            text = f"as {given} says, which is not here"
            yield Effect("sharding", None, "unclear", text)
            yield _batch(config)
            return
        given = found.data
    filled = copy.deepcopy(dict(given)) if isinstance(given, Mapping) else {}
    for name in ("fp16", "bf16"):
        inner = filled.get(name)
        on = bool(config.get(name, False))
        if isinstance(inner, dict) and inner.get("enabled") == AUTO:
            inner["enabled"] = on
        elif name not in filled:
            filled[name] = {"enabled": on}
    sizes = {MICRO: config.get("per_device_train_batch_size", BATCH)}
    sizes[ACCUMULATION] = config.get("gradient_accumulation_steps", 1)
    for key, value in sizes.items():
        filled[key] = value if filled.get(key, AUTO) == AUTO else filled[key]
    if filled.get("train_batch_size") == AUTO:
        del filled["train_batch_size"]
    yield from deepspeed_effects(filled, auto=True)


def _batch(config: Config) -> Effect:
    micro = as_int(config.get("per_device_train_batch_size", BATCH))
    steps = as_int(config.get("gradient_accumulation_steps", 1))
    by: By = "file" if "per_device_train_batch_size" in config else "default"
    value = {"micro": micro, "steps": steps}
    return Effect("batch", value, by, f"{micro} x {steps} x ranks")
