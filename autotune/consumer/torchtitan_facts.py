"""What is known of the options of torchtitan, for where it is not installed.

Facts: torchtitan 0.3.0, config/configs.py, distributed/activation_checkpoint.py, trainer.py.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FILE = "torchtitan.flags"
TF32 = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
CHECKPOINTING = "activation-checkpoint"
NAMES = {"float32": "fp32", "bfloat16": "bf16"}

OPTIONS: Mapping[str, tuple[str, ...] | type[int] | type[float]] = {
    "training.dtype": ("bfloat16", "float32"),
    "training.mixed_precision_param": ("bfloat16", "float32"),
    "training.mixed_precision_reduce": ("float32",),
    "training.max_norm": float,
    "training.local_batch_size": int,
    "training.global_batch_size": int,
    "parallelism.fsdp_reshard_after_forward": ("default", "always", "never"),
}
"""What the value of an option may be."""
POLICIES = ("selective", "full", "memory-budget", "none")
"""Of activation checkpointing, which is a word of its own behind all options."""


def parsed(words: Sequence[str]) -> tuple[dict[str, Any], str]:
    """The options, and the policy of activation checkpointing; asserts what would be refused."""
    *options, last = words
    chosen = dict(_option(word) for word in options)
    command, _, policy = last.partition(":")
    assert len(chosen) == len(options), "an option occurs twice"
    assert command == CHECKPOINTING, f"torchtitan refuses {last!r}"
    assert policy in POLICIES, f"torchtitan refuses {last!r}"
    return chosen, policy


def _option(word: str) -> tuple[str, Any]:
    name, _, value = word.partition("=")
    assert name.startswith("--"), f"torchtitan has no {word!r}"
    name = name.removeprefix("--")
    assert name in OPTIONS, f"torchtitan has no {word!r}"
    kind = OPTIONS[name]
    if isinstance(kind, type):
        return name, kind(value)
    assert value in kind, f"torchtitan refuses {word!r}"
    return name, value


def sourced(folder: Path, ranks: int) -> tuple[list[str], dict[str, str]]:
    """The words of the array, and the environment, after ``source`` in a strict shell."""
    command = 'set -euo pipefail; source "$1"; printf "%s\\0" "${torchtitan_flags[@]}" ""; env -0'
    done = subprocess.run(
        ["bash", "-c", command, "bash", str(folder / FILE)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "DATA_PARALLEL_RANKS": str(ranks)},
    )
    words, _, rest = done.stdout.partition("\0\0")
    entries = (entry.split("=", 1) for entry in rest.split("\0") if "=" in entry)
    return words.split("\0"), dict(entries)


def effective(
    chosen: Mapping[str, Any], policy: str, environment: Mapping[str, str], ranks: int
) -> dict[str, Any]:
    """The knobs; the accumulation by the rule of torchtitan's trainer.py.

    Args:
        chosen: Values of the options, by section and name.
        policy: Of activation checkpointing.
        environment: What the processes start with.
        ranks: Data-parallel ranks.
    """
    assert chosen["training.dtype"] == "float32", "the weights are no longer float32"
    precision = NAMES[chosen["training.mixed_precision_param"]]
    samples = chosen["training.local_batch_size"]
    together = chosen["training.global_batch_size"]
    steps, left = divmod(together if together > 0 else samples * ranks, samples * ranks)
    assert left == 0, "torchtitan refuses a global batch that is not whole micro-batches"
    return {
        # torch reads the variable while it is imported.
        "precision": "tf32" if precision == "fp32" and environment[TF32] == "1" else precision,
        "grad_comm_dtype": NAMES[chosen["training.mixed_precision_reduce"]],
        "zero_stage": 2 if chosen["parallelism.fsdp_reshard_after_forward"] == "never" else 3,
        "activation_checkpointing": policy == "full",
        "micro_batch": samples,
        "gradient_accumulation": steps,
    }
