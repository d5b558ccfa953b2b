"""What the arguments of transformers do that they should not."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.configs.deepspeed_says import ACCUMULATION, MICRO
from autotune.configs.huggingface_keys import ARGUMENTS, BOOLS, NUMBERS, REMOVED
from autotune.configs.texts import block, show
from autotune.configs.values import AUTO
from autotune.lint.checks_tables import retyped
from autotune.lint.edits import insert, put, remove, rename
from autotune.lint.finding import About, Check, Finding, found
from autotune.lint.places import get

Config = Mapping[str, Any]
ALIKE = 0.9  # scripts have arguments of their own, which may be like these
SAME: Mapping[tuple[str, ...], tuple[str, Any]] = {
    (MICRO,): ("per_device_train_batch_size", 8),
    (ACCUMULATION,): ("gradient_accumulation_steps", 1),
    ("gradient_clipping",): ("max_grad_norm", 1.0),
    ("optimizer", "params", "lr"): ("learning_rate", 5e-5),
    ("optimizer", "params", "weight_decay"): ("weight_decay", 0.0),
    ("fp16", "enabled"): ("fp16", False),
    ("bf16", "enabled"): ("bf16", False),
}
"""Keys of DeepSpeed that transformers compares with its arguments, and their defaults."""


def names(config: Config, about: About) -> Iterator[Finding]:
    """Arguments that are gone, or nearly those that are known."""
    for key in config:
        if key in REMOVED:
            why, meant = REMOVED[key]
            edits = [] if meant is None else [remove(key)]
            if meant is not None and meant not in config:
                edits = [rename((key,), meant)]
            yield found("hf-removed-argument", (key,), f"{key} is gone: {why}", *edits)
        elif key not in ARGUMENTS:
            like = difflib.get_close_matches(key, sorted(ARGUMENTS - set(config)), 1, ALIKE)
            if like:
                text = f"{key} is no argument of transformers; did you mean {like[0]}?"
                yield found("misspelt-key", (key,), text, rename((key,), like[0]))


def types(config: Config, about: About) -> Iterator[Finding]:
    """Only TrlParser and the command line convert what stands in a YAML or JSON file."""
    for key, value in config.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if key in BOOLS and not isinstance(value, bool | None):
            truth = "true" if value else "false"
            text = f"{key} is {show(value)}, which counts as {truth} and is no boolean"
        elif key in NUMBERS and value is not None and not number:
            text = f"{key} is {show(value)}, which is no number"
        else:
            continue
        edits = retyped((key,), value)
        if edits:
            text += "; only TrlParser converts it"
        yield found("wrong-type", (key,), text, *edits, level="warning" if edits else None)


def precision(config: Config, about: About) -> Iterator[Finding]:
    """One of the two."""
    if config.get("fp16") is True and config.get("bf16") is True:
        yield found("fp16-and-bf16", ("fp16",), "fp16 and bf16 are both true; keep one")


def sharding(config: Config, about: About) -> Iterator[Finding]:
    """``fsdp`` beside ``fsdp_config``."""
    values, fsdp = block(config, "fsdp_config"), config.get("fsdp")
    if config.get("fsdp_config") and not fsdp:
        edit = put(("fsdp",), True) if "fsdp" in config else insert(("fsdp",), True)
        text = "fsdp_config without fsdp: nothing in it is read"
        yield found("hf-fsdp-off", ("fsdp_config",), text, edit)
    by_fsdp = values.get("activation_checkpointing", values.get("fsdp_activation_checkpointing"))
    for key in ("gradient_checkpointing", "activation_checkpointing"):
        if fsdp and by_fsdp is True and config.get(key) is True:
            text = f"{key} and fsdp_config.activation_checkpointing are both true"
            yield found("hf-two-checkpointings", (key,), text, put((key,), False))


def deepspeed(config: Config, about: About) -> Iterator[Finding]:
    """Values of an inner DeepSpeed configuration that transformers compares with `!=`."""
    inner = block(config, "deepspeed")
    for key, (name, usual) in SAME.items():
        theirs, ours = get(inner, key), config.get(name, usual)
        if theirs in (None, AUTO, ours):
            continue
        said = show(ours) if name in config else f"absent, which means {show(ours)}"
        text = f"{'.'.join(key)} is {show(theirs)}, but {name} is {said}"
        path = ("deepspeed", *key)
        yield found("hf-deepspeed-mismatch", path, text, put(path, AUTO))


CHECKS: tuple[Check, ...] = (names, types, precision, sharding, deepspeed)
