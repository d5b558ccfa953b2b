"""Which keys of ``fsdp_config`` and of an inner ``deepspeed`` matter to transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from accelerate.utils import FullyShardedDataParallelPlugin
from transformers import TrainingArguments
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

from autotune.consumer.huggingface import capable
from autotune.consumer.perturb import Config, perturb, plain, without
from autotune.consumer.perturb_accelerate import as_on_a_gpu

READ = (
    *("fsdp", "fsdp_config", "bf16", "fp16", "gradient_checkpointing", "activation_checkpointing"),
)
"""Arguments that have a part in what is watched."""
USUAL: Mapping[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "learning_rate": 5e-5,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "save_on_each_node": False,
    "fp16": False,
    "bf16": False,
    "fp16_full_eval": False,
    "bf16_full_eval": False,
}


def read(
    folder: Path, config: Config, keys: Sequence[Sequence[str]], drop: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """Changes each key of the arguments.

    Args:
        folder: Where relative paths start.
        config: The arguments; without their ``drop`` they are what is changed.
        keys: Paths of the keys to change.
        drop: Paths of keys that transformers is known to refuse.
    """
    with capable(), as_on_a_gpu():
        return perturb(without(config, drop), keys, observe)


def read_fragment(
    folder: Path, config: Config, keys: Sequence[Sequence[str]], drop: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """Changes each key of a file that ``fsdp_config`` names; arguments as in `read`."""
    with capable(), as_on_a_gpu():
        return perturb(
            without(config, drop),
            keys,
            lambda changed: observe({"fsdp": True, "fsdp_config": changed}),
        )


def observe(config: Config) -> Any:
    """The plugin that the Trainer makes of ``fsdp_config``, and what DeepSpeed is handed."""
    known = {key: value for key, value in config.items() if key in READ}
    args: Any = TrainingArguments(output_dir="unused", **known)
    plugin = None
    if args.fsdp_plugin_args is not None:
        plugin = FullyShardedDataParallelPlugin(**args.fsdp_plugin_args)
        if args.mixed_precision != "no":
            plugin.set_mixed_precision(args.mixed_precision)
    inner = config.get("deepspeed")
    return {
        "plugin": None if plugin is None else plain(vars(plugin)),
        "mixed_precision": args.mixed_precision,
        "xla": plain(getattr(args, "xla_fsdp_config", None)),
        "deepspeed": _deepspeed(inner, config) if isinstance(inner, dict) else None,
    }


def _deepspeed(inner: Config, config: Config) -> Any:
    from autotune.consumer.perturb_deepspeed import observe as by_deepspeed

    said = {key: config.get(key, value) for key, value in USUAL.items()}
    make: Any = HfTrainerDeepSpeedConfig
    filled = make(inner)
    filled.trainer_config_process(SimpleNamespace(world_size=1, **said))
    if filled.mismatches:
        raise ValueError("; ".join(filled.mismatches))
    return by_deepspeed(filled.config)
