"""Placeholders in the command line of a user's script, and what a setup puts in their place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from autotune.setup import Setup

NAME = re.compile(r"\{\{(?P<plain>[A-Za-z_]\w*)\}\}|\{(?P<name>[A-Za-z_]\w*)\}", re.ASCII)
FILES: Mapping[str, str] = {
    "deepspeed_config": "ds_config.json",
    "accelerate_config": "accelerate.yaml",
    "fsdp_setup": "fsdp_setup.py",
    "ddp_setup": "ddp_setup.py",
}
"""Placeholders that stand for the path of a rendered file, and its name."""
OUTPUT = "output_dir"
KNOBS: Mapping[str, str] = {
    "precision": "fp32, tf32, bf16 or fp16",
    "mixed_precision": "no, bf16 or fp16, as accelerate calls it",
    "bf16": "true or false",
    "fp16": "true or false",
    "tf32": "true or false",
    "micro_batch": "samples in one backward call on one rank",
    "gradient_accumulation": "backward calls in one optimizer step",
    "activation_checkpointing": "true or false",
}
PLACEHOLDERS: tuple[str, ...] = (*FILES, *KNOBS, OUTPUT)
PRECISION = frozenset({"precision", "mixed_precision", "bf16", "fp16"})
"""Those that tell a script the precision."""


def placeholders_in(command: Sequence[str]) -> tuple[str, ...]:
    """Names of the placeholders in a command line, each once, known or not.

    ``{{name}}`` stands for ``{name}``; braces around anything but a name are left alone, so JSON
    can be an argument.
    """
    matches = (match for word in command for match in NAME.finditer(word))
    found = (match["name"] for match in matches if match["name"])
    return tuple(dict.fromkeys(found))


def fill(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The command line with every placeholder replaced.

    Args:
        command: Words of the command line.
        values: Text of every placeholder that occurs.
    """
    return [NAME.sub(lambda match: _one(match, values), word) for word in command]


def _one(match: re.Match[str], values: Mapping[str, str]) -> str:
    return values[match["name"]] if match["name"] else f"{{{match['plain']}}}"


def knob_values(setup: Setup) -> dict[str, str]:
    """Text of the placeholders that need no file."""
    precision = setup.precision
    return {
        "precision": precision,
        "mixed_precision": precision if precision in ("bf16", "fp16") else "no",
        **{name: _boolean(precision == name) for name in ("bf16", "fp16", "tf32")},
        "micro_batch": str(setup.micro_batch),
        "gradient_accumulation": str(setup.gradient_accumulation),
        "activation_checkpointing": _boolean(setup.activation_checkpointing),
    }


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def unknown(command: Sequence[str]) -> Iterator[str]:
    """Placeholders that mean nothing."""
    return (name for name in placeholders_in(command) if name not in PLACEHOLDERS)
