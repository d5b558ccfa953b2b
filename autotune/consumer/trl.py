"""TRL's file, by its own parser and the launcher that it names, or by what is known of them.

Known of TRL 1.16.0 (trl/trainer/base_config.py, trl/trainer/model_config.py, trl/cli): its
configurations are TrainingArguments with other defaults, two of which are knobs; the weights are
loaded in ``dtype``; ``accelerate_config`` goes to `accelerate launch`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from accelerate.utils import patch_environment

from autotune.consumer.accelerate import installed, launched
from autotune.consumer.huggingface import capable, effective, parser

FILE = "trl.yaml"
DEFAULTS = {"gradient_checkpointing": True, "dtype": "float32"}
OF_MODEL, OF_LAUNCHER = "dtype", "accelerate_config"


def read(folder: Path, file: str = FILE) -> dict[str, Any]:
    """What TRL's trainer does that `trl sft --config` starts."""
    installed(folder)
    parse = parsed if importlib.util.find_spec("trl") else parsed_as_known
    with capable():
        _, _, config_file = parse(folder / file)
        with patch_environment(**launched(folder / config_file)):
            args, model, _ = parse(folder / file)
            if model.dtype != "float32":
                raise ValueError(f"the weights are loaded in {model.dtype}")
            return effective(args, folder)


def parsed(path: Path) -> tuple[Any, Any, str]:
    """Arguments of the trainer and the model, and the launcher's file, by TRL."""
    make = importlib.import_module("trl.scripts.sft").make_parser
    _, args, model, _, rest = make().parse_args_and_config(
        ["--config", str(path)], return_remaining_strings=True
    )
    # All that TRL leaves over is the launcher's.
    if rest[:1] != [f"--{OF_LAUNCHER}"] or len(rest) != 2:
        raise ValueError(f"{path.name} has keys that TRL does not know: {rest}")
    return args, model, rest[1]


def parsed_as_known(path: Path) -> tuple[Any, Any, str]:
    """The same, as TRL is known to do it."""
    said: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    said = {**DEFAULTS, "bf16": not said.get("fp16", False), **said}
    own = {key: value for key, value in said.items() if key not in (OF_MODEL, OF_LAUNCHER)}
    (args,) = parser().parse_dict(own)
    return args, SimpleNamespace(dtype=said[OF_MODEL]), said[OF_LAUNCHER]
