"""What `accelerate launch` and a script's Accelerator make of a file, by their own code."""

from __future__ import annotations

import importlib
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
    args, found = _reader().parsed_and_launched(path, *arguments)
    assert args.use_deepspeed or args.use_fsdp or args.multi_gpu
    return {**found, "nproc_per_node": args.nproc_per_node}


def fsdp_plugin(environment: Mapping[str, str]) -> dict[str, Any]:
    """Every field of the plugin that a script's Accelerator makes of the environment."""
    return dict(vars(_reader().fsdp_plugin(environment)))


def deepspeed_plugin(environment: Mapping[str, str]) -> Any:
    """The plugin that a script's Accelerator makes of the environment."""
    return _reader().deepspeed_plugin(environment)


def _reader() -> Any:
    # Imports accelerate, without which the tests are skipped.
    return importlib.import_module("autotune.consumer.accelerate")
