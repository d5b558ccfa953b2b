"""Which keys matter to `accelerate launch` and to the plugins that a script's Accelerator makes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from accelerate import utils
from accelerate.commands import launch
from accelerate.utils import dataclasses as plugins
from accelerate.utils import launch as prepare
from torch.distributed import fsdp, run

from autotune.consumer.perturb import Config, perturb, plain, without

BY_PLUGIN = ("FSDP_", "ACCELERATE_DEEPSPEED_", "ACCELERATE_GRADIENT_", "ACCELERATE_CONFIG_DS_")
"""Of the environment; the plugins say what is made of it."""
FILE = "accelerate.json"  # as good as YAML, and read much faster
ONCE = fsdp
"""The plugin imports it, which is better done once, before the fork, than in every child."""


def read(
    folder: Path, config: Config, keys: Sequence[Sequence[str]], drop: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """Changes each key of a configuration.

    Args:
        folder: Where `accelerate launch` is started.
        config: The configuration; without its ``drop`` it is what is changed.
        keys: Paths of the keys to change.
        drop: Paths of keys that accelerate is known to refuse.
    """
    base = without(config, drop)
    with tempfile.TemporaryDirectory(prefix="autotune-lint-") as name, as_on_a_gpu():
        path = Path(name) / FILE
        return perturb(base, keys, lambda changed: observe(changed, path))


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """On any machine, as if it had what the file asks for."""
    with ExitStack() as stack:
        for module, name, value in (
            (plugins, "is_cuda_available", True),
            (prepare, "is_fp8_available", True),
            (prepare, "is_port_in_use", False),
            (torch.cuda, "current_device", 0),
        ):
            stack.enter_context(mock.patch.object(module, name, return_value=value))
        yield


def observe(config: Config, path: Path) -> Any:
    """Environment, launcher and plugin."""
    path.write_text(json.dumps(config), encoding="utf-8")
    line = ["--config_file", str(path), "train.py"]
    if config.get("num_processes", -1) == -1:
        line = ["--num_processes", "2", *line]
    args, defaults, from_file = launch._validate_launch_command(
        launch.launch_command_parser().parse_args(line)
    )
    before = dict(os.environ)
    command, environment = _prepared(args, defaults, from_file)
    said = {key: value for key, value in environment.items() if before.get(key) != value}
    started = prepare._filter_args(args, run.get_args_parser(), ["--training_script", "train.py"])
    return {
        "command": command,
        "environment": {key: value for key, value in said.items() if not key.startswith(BY_PLUGIN)},
        "torchrun": plain(vars(started)),
        "plugin": _plugin(said),
    }


def _prepared(args: Any, defaults: Any, from_file: bool) -> tuple[Any, Mapping[str, str]]:
    if args.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if from_file else [])]
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        found: tuple[Any, Mapping[str, str]] = prepare.prepare_deepspeed_cmd_env(args)
        return found
    if args.use_fsdp or args.multi_gpu or args.use_megatron_lm:
        return None, prepare.prepare_multi_gpu_env(args)
    found = prepare.prepare_simple_launcher_cmd_env(args)
    return found


def _plugin(environment: Mapping[str, str]) -> Any:
    mixed = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    with utils.patch_environment(**environment):
        if environment.get("ACCELERATE_USE_DEEPSPEED") == "true":
            plugin: Any = utils.DeepSpeedPlugin()
            plugin.set_mixed_precision(mixed)
        elif environment.get("ACCELERATE_USE_FSDP") == "true":
            plugin = utils.FullyShardedDataParallelPlugin()
            if mixed != "no":
                plugin.set_mixed_precision(mixed)
        else:
            return None
    fields = {key: value for key, value in vars(plugin).items() if key != "hf_ds_config"}
    return plain(fields)
