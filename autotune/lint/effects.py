"""What a document effectively does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune.configs.deepspeed_inert import fills
from autotune.lint.checks_fsdp import plain, version_of
from autotune.lint.document import Document
from autotune.lint.effect import Effect
from autotune.lint.effect_deepspeed import deepspeed_effects
from autotune.lint.effect_fsdp import fsdp_effects
from autotune.lint.effect_launchers import accelerate_effects, huggingface_effects
from autotune.lint.finding import About
from autotune.lint.kinds import Kind


def effects_of(
    document: Document, kind: Kind, folder: Path, versions: Mapping[str, str]
) -> tuple[Effect, ...]:
    """Every aspect that the file has a part in.

    Args:
        document: The file.
        kind: Whose it is.
        folder: Where files that it names are looked for.
        versions: Versions of the consumers, as far as they are known.
    """
    config = document.data
    about = About(auto=True, strict=True, versions=versions)
    if kind == "deepspeed":
        return tuple(deepspeed_effects(config, auto=fills(config)))
    if kind == "accelerate":
        return tuple(accelerate_effects(config, folder))
    if kind == "huggingface":
        return tuple(huggingface_effects(config, folder, about))
    values = {plain(key): value for key, value in config.items()}
    usual = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", **values}
    return tuple(fsdp_effects(usual, None, version_of(config, about), strategy=None))
