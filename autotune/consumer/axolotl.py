"""axolotl's YAML, by its schema where it is installed, and by what is known to become of it.

Known of axolotl 0.19.0: utils/schemas/config.py, training.py and fsdp.py (keys and types),
core/builders/base.py and causal.py (what TrainingArguments get; the same was found by running both
builders' own code), utils/trainer.py (what the environment gets), integrations/base.py (plugins).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from accelerate.utils import patch_environment

from autotune.consumer.huggingface import capable, effective, parser

FILE = "axolotl.yaml"
SAME = (
    *("gradient_accumulation_steps", "max_grad_norm", "gradient_checkpointing"),
    *("deepspeed", "ddp_bucket_cap_mb"),
)
"""Keys that go to TrainingArguments as they are."""
KEYS: Mapping[str, type] = {
    "bf16": bool,
    "fp16": bool,
    "tf32": bool,
    "micro_batch_size": int,
    "gradient_accumulation_steps": int,
    "max_grad_norm": float,
    "gradient_checkpointing": bool,
    "deepspeed": str,
    "ddp_bucket_cap_mb": int,
    "fsdp_version": int,
    "fsdp_config": dict,
    "plugins": list,
}
"""Of axolotl's schema, those that an export may write, each with the type that it is written in."""
FSDP_KEYS: Mapping[str, type] = {
    "reshard_after_forward": bool,
    "activation_checkpointing": bool,
    "auto_wrap_policy": str,
}
REQUIRED = {
    "base_model": "x",
    "datasets": [{"path": "x", "type": "alpaca"}],
    "learning_rate": 1e-4,
}
"""What the schema demands of a whole configuration, and a fragment leaves to the user."""


def read(folder: Path, file: str = FILE) -> dict[str, Any]:
    """What the Trainer does that axolotl makes of the fragment."""
    said: dict[str, Any] = yaml.safe_load((folder / file).read_text(encoding="utf-8"))
    demand_known(said, KEYS)
    demand_known(said.get("fsdp_config", {}), FSDP_KEYS)
    if importlib.util.find_spec("axolotl"):
        demand_valid(said)
    register(said.get("plugins", []))
    with capable(), patch_environment(**environment(said)):
        (args,) = parser().parse_dict(arguments(said))
        return effective(args, folder)


def demand_known(said: Mapping[str, Any], keys: Mapping[str, type]) -> None:
    """Raises ValueError for a key or a type that axolotl is not known to read."""
    for key, value in said.items():
        if key not in keys or type(value) is not keys[key]:
            raise ValueError(f"axolotl is not known to read {key}: {value!r}")


def demand_valid(said: Mapping[str, Any]) -> None:
    """Raises ValueError where axolotl's own schema refuses, drops or changes something."""
    schema = importlib.import_module("axolotl.utils.schemas.config").AxolotlInputConfig
    read_as = schema(**REQUIRED, **said).model_dump(exclude_none=True)
    for key, value in said.items():
        found = read_as.get(key)
        kept = value.items() <= found.items() if isinstance(value, dict) else found == value
        if not kept:
            raise ValueError(f"axolotl reads {key}: {value!r} as {found!r}")


def register(plugins: list[str]) -> None:
    """Loads each plugin by its name and lets it register, as axolotl does before anything else."""
    if plugins and not importlib.util.find_spec("axolotl"):
        base = ModuleType("axolotl.integrations.base")
        base.__dict__["BasePlugin"] = object
        for name in ("axolotl", "axolotl.integrations"):
            sys.modules[name] = ModuleType(name)
        sys.modules[base.__name__] = base
    for name in plugins:
        module, _, plugin = name.rpartition(".")
        getattr(importlib.import_module(module), plugin)().register({})


def environment(said: Mapping[str, Any]) -> dict[str, str]:
    """What axolotl sets before there is a Trainer."""
    mixed = "bf16" if said["bf16"] else "fp16" if said["fp16"] else "no"
    found = {"ACCELERATE_MIXED_PRECISION": mixed}
    if "fsdp_config" in said:
        found["ACCELERATE_USE_FSDP"] = "true"
        found["FSDP_VERSION"] = str(said["fsdp_version"])
    if "deepspeed" in said:
        steps = said["gradient_accumulation_steps"]
        found["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = str(steps)
    return found


def arguments(said: Mapping[str, Any]) -> dict[str, Any]:
    """TrainingArguments that axolotl makes of the keys."""
    found = {
        "bf16": said["bf16"],
        "fp16": said["fp16"] and not said["bf16"],
        "tf32": said["tf32"] is True,
        "per_device_train_batch_size": said["micro_batch_size"],
        **{key: said[key] for key in SAME if key in said},
    }
    if "fsdp_config" in said:
        found["fsdp"] = True
        found["fsdp_config"] = {**said["fsdp_config"], "fsdp_version": said["fsdp_version"]}
    return found
