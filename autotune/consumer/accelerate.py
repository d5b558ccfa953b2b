"""accelerate's file, by its own launcher and the plugins that a script's Accelerator makes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import utils
from accelerate.commands import launch
from accelerate.utils import launch as prepare
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from autotune.consumer.dtypes import float32_products
from autotune.consumer.modules import Model, one_rank, replicated, scale_of, sharded

FILE = "accelerate.yaml"


def read(folder: Path, file: str = FILE) -> dict[str, Any]:
    """What a script finds that `accelerate launch` starts with the file."""
    environment = launched(folder / file)
    if environment.get("ACCELERATE_USE_DEEPSPEED") == "true":
        from autotune.consumer.deepspeed import effective

        return effective(deepspeed_plugin(environment).deepspeed_config)
    mixed = environment["ACCELERATE_MIXED_PRECISION"]
    installed(folder)
    with one_rank(folder):
        if environment.get("ACCELERATE_USE_FSDP") == "true":
            found = sharded_by(fsdp_plugin(environment))
        else:
            found = _ddp(mixed)
    if found["precision"] == "fp16":
        found["loss_scale"] = scale_of(torch.amp.GradScaler("cpu"))
    return found


def launched(path: Path, *arguments: str) -> dict[str, str]:
    """What `accelerate launch` puts into the environment of the processes."""
    return parsed_and_launched(path, *arguments)[1]


def parsed_and_launched(path: Path, *arguments: str) -> tuple[Any, dict[str, str]]:
    """The launcher's arguments, and what it puts into the environment of the processes."""
    line = ["--config_file", str(path), *(arguments or ("--num_processes", "2")), "train.py"]
    parsed = launch.launch_command_parser().parse_args(line)
    args, defaults, from_file = launch._validate_launch_command(parsed)
    before = dict(os.environ)
    if args.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if from_file else [])]
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, found = prepare.prepare_deepspeed_cmd_env(args)
    else:
        found = prepare.prepare_multi_gpu_env(args)
    return args, {key: value for key, value in found.items() if before.get(key) != value}


def deepspeed_plugin(environment: Mapping[str, str]) -> Any:
    """The plugin that a script's Accelerator makes of the environment."""
    with utils.patch_environment(**environment):
        plugin = utils.DeepSpeedPlugin()
        plugin.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])
    return plugin


def fsdp_plugin(environment: Mapping[str, str]) -> Any:
    """The plugin that a script's Accelerator makes of the environment."""
    with utils.patch_environment(**environment):
        plugin = utils.FullyShardedDataParallelPlugin()
        if environment["ACCELERATE_MIXED_PRECISION"] != "no":
            plugin.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])
    return plugin


def installed(folder: Path) -> None:
    """Calls ``install()`` of the module beside the file, as the notes ask a script to do it."""
    for name in ("fsdp_setup", "ddp_setup"):
        if (folder / f"{name}.py").exists():
            importlib.import_module(name).install()


def sharded_by(plugin: Any) -> dict[str, Any]:
    """FSDP2, as accelerate's `fsdp2_prepare_model` calls ``fully_shard`` with its plugin."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = Model()
    options = {
        "mesh": init_device_mesh("cpu", (1,)),
        "reshard_after_forward": plugin.reshard_after_forward,
        "mp_policy": plugin.mixed_precision_policy or MixedPrecisionPolicy(),
    }
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return {**sharded(model), "activation_checkpointing": plugin.activation_checkpointing}


def _ddp(mixed: str) -> dict[str, Any]:
    found = replicated(DistributedDataParallel(Model()))
    return {**found, "precision": mixed if mixed != "no" else float32_products()}
