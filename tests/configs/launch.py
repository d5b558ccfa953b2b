"""What `accelerate launch` and a script's Accelerator make of a file, by their own code."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def write(config: Mapping[str, Any]) -> Path:
    """The file, in the folder of the test."""
    path = Path("accelerate.yaml")
    path.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    return path


def launched(path: Path, *arguments: str) -> dict[str, str]:
    """What `accelerate launch` puts into the environment of the processes."""
    launch: Any = importlib.import_module("accelerate.commands.launch")
    prepare: Any = importlib.import_module("accelerate.utils.launch")
    line = ["--config_file", str(path), *(arguments or ("--num_processes", "2")), "train.py"]
    args, defaults, from_file = launch._validate_launch_command(
        launch.launch_command_parser().parse_args(line)
    )
    before = dict(os.environ)
    if args.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if from_file else [])]
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, found = prepare.prepare_deepspeed_cmd_env(args)
    else:
        found = prepare.prepare_multi_gpu_env(args)
    assert args.use_deepspeed or args.use_fsdp or args.multi_gpu
    return {
        **{key: value for key, value in found.items() if before.get(key) != value},
        "nproc_per_node": args.nproc_per_node,
    }


def fsdp_plugin(environment: Mapping[str, str]) -> dict[str, Any]:
    """Every field of the plugin that a script's Accelerator makes of the environment."""
    utils: Any = importlib.import_module("accelerate.utils")
    with utils.patch_environment(**environment):
        plugin = utils.FullyShardedDataParallelPlugin()
        if environment["ACCELERATE_MIXED_PRECISION"] != "no":
            plugin.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])
    return dict(vars(plugin))


def deepspeed_plugin(environment: Mapping[str, str]) -> Any:
    """The plugin that a script's Accelerator makes of the environment."""
    utils: Any = importlib.import_module("accelerate.utils")
    with utils.patch_environment(**environment):
        plugin = utils.DeepSpeedPlugin()
        plugin.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])
    return plugin
