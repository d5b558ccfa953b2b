"""LLaMA-Factory's YAML, by its own argument classes, or by what is known of them.

Known of LLaMA-Factory 0.9.5: hparams/parser.py (HfArgumentParser.parse_dict over all classes, which
refuses unknown keys), hparams/training_args.py (TrainingArguments with other fields beside them),
hparams/model_args.py and model/model_utils/checkpointing.py (``disable_gradient_checkpointing``).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from accelerate.utils import patch_environment

from autotune.consumer import accelerate
from autotune.consumer.huggingface import capable, effective, parser

FILE = "llamafactory.yaml"
DISABLE = "disable_gradient_checkpointing"


def read(folder: Path, file: str = FILE) -> dict[str, Any]:
    """What the Trainer does that LLaMA-Factory makes of the fragment."""
    accelerate.installed(folder)
    said: dict[str, Any] = yaml.safe_load((folder / file).read_text(encoding="utf-8"))
    parse = parsed if importlib.util.find_spec("llamafactory") else parsed_as_known
    with capable(), patch_environment(**environment(folder)):
        args, disabled = parse(said)
        found = effective(args, folder)
    if not disabled and found["activation_checkpointing"]:
        raise ValueError("activations are recomputed twice")
    recomputed = found["activation_checkpointing"] or not disabled
    return {**found, "activation_checkpointing": recomputed}


def environment(folder: Path) -> dict[str, str]:
    """Of `accelerate launch`, if that starts the training."""
    path = folder / accelerate.FILE
    return accelerate.launched(path) if path.exists() else {}


def parsed(said: Mapping[str, Any]) -> tuple[Any, bool]:
    """The Trainer's arguments and the switch, by LLaMA-Factory's own classes."""
    model_args = importlib.import_module("llamafactory.hparams.model_args").ModelArguments
    args = importlib.import_module("llamafactory.hparams.training_args").TrainingArguments
    full = {"model_name_or_path": "x", **said}
    model, found = parser(model_args, args).parse_dict(full)
    return found, model.disable_gradient_checkpointing


def parsed_as_known(said: Mapping[str, Any]) -> tuple[Any, bool]:
    """The same, as LLaMA-Factory is known to do it."""
    own = {key: value for key, value in said.items() if key != DISABLE}
    (args,) = parser().parse_dict(own)
    return args, said.get(DISABLE, False)
