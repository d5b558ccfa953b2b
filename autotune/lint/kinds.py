"""Whose file it is, by what stands in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from autotune.configs.accelerate_keys import TOP_LEVEL as ACCELERATE
from autotune.configs.deepspeed_faults import neox_keys
from autotune.configs.deepspeed_keys import REMOVED, TOP_LEVEL
from autotune.configs.huggingface_keys import FSDP_MARKS, MARKS
from autotune.configs.names import closest

Kind = Literal["deepspeed", "accelerate", "huggingface", "fsdp"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TITLES: Mapping[Kind, str] = {
    "deepspeed": "DeepSpeed configuration",
    "accelerate": "accelerate configuration",
    "huggingface": "arguments of transformers",
    "fsdp": "fsdp_config of transformers",
}
OWN_BLOCKS = ("fp16", "bf16")  # mappings for DeepSpeed, switches for transformers
ENOUGH = 2


@dataclass(frozen=True, slots=True)
class Unknown:
    """A file of none of the kinds.

    Attributes:
        why: One line, without the name of the file.
    """

    why: str


def recognise(config: Mapping[str, Any]) -> Kind | Unknown:
    """The kind of a file."""
    alien = _alien(config)
    if alien is not None:
        return Unknown(alien)
    if "distributed_type" in config or _accelerates(config):
        return "accelerate"
    if _deepspeeds(config):
        return "deepspeed"
    if _fragment(config):
        return "fsdp"
    if any(key in MARKS and not _block(config, key) for key in config):
        return "huggingface"
    if any(key in (*TOP_LEVEL, *REMOVED) for key in config):
        return "deepspeed"
    return Unknown(_nothing(config))


def _alien(config: Mapping[str, Any]) -> str | None:
    if neox_keys(config):
        return (
            "is a gpt-neox file, of which NeoX derives DeepSpeed's configuration; lint the one "
            "that NeoX prints"
        )
    if "base_model" in config and ("datasets" in config or "adapter" in config):
        return "is an axolotl file; lint the DeepSpeed file that it names"
    return None


def _accelerates(config: Mapping[str, Any]) -> bool:
    """Also without the key that accelerate demands."""
    marks = ("compute_environment", "num_machines", "machine_rank", "main_training_function")
    others = sum(key in ACCELERATE for key in config)
    return any(key in config for key in marks) and others >= ENOUGH


def _deepspeeds(config: Mapping[str, Any]) -> bool:
    """Keys that transformers has too do not count: gradient_accumulation_steps, optimizer..."""
    blocks = any(_block(config, name) for name in (*OWN_BLOCKS, "zero_optimization"))
    sizes = "train_batch_size" in config or "train_micro_batch_size_per_gpu" in config
    return blocks or sizes or isinstance(config.get("zero_optimization"), bool)


def _block(config: Mapping[str, Any], key: str) -> bool:
    """Whether a key holds a mapping, as DeepSpeed's do; ``deepspeed`` may for transformers."""
    return key != "deepspeed" and isinstance(config.get(key), Mapping)


def _fragment(config: Mapping[str, Any]) -> bool:
    """A file that ``fsdp_config`` names: most of its keys are of that block."""
    inner = sum(key.removeprefix("fsdp_") in FSDP_MARKS for key in config)
    return inner > 0 and 2 * inner >= len(config) and not any(key in MARKS for key in config)


def _nothing(config: Mapping[str, Any]) -> str:
    keys = ", ".join(list(config)[:3])
    for key in config:
        meant = closest(key, (*TOP_LEVEL, *ACCELERATE, *MARKS))
        if meant is not None:
            return f"is of no known kind; {key} looks like {meant}: say --kind"
    return f"is of no known kind ({keys}...): say --kind, one of {', '.join(KINDS)}"
