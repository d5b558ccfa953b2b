"""The options for torchtitan, by its own parser; without torchtitan, by what is known of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.consumer import torchtitan_facts as facts


def read(
    folder: Path, ranks: int = 1, module: str = "llama3", config: str = "llama3_debugmodel"
) -> dict[str, Any]:
    """What torchtitan makes of the options.

    Args:
        folder: Folder of the options.
        ranks: Data-parallel ranks.
        module: Model that they are added to.
        config: One of its configurations.
    """
    words, environment = facts.sourced(folder, ranks)
    if importlib.util.find_spec("torchtitan") is None:
        chosen, policy = facts.parsed(words)
    else:
        chosen, policy = _parsed(["--module", module, "--config", config, *words])
    return facts.effective(chosen, policy, environment, ranks)


def _parsed(words: Sequence[str]) -> tuple[dict[str, Any], str]:
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed.activation_checkpoint import FullAC

    found = ConfigManager().parse_args(list(words))
    policy = "full" if isinstance(found.activation_checkpoint, FullAC.Config) else "none"
    assert policy == "full" or found.activation_checkpoint is None
    return {name: _value(found, name) for name in facts.OPTIONS}, policy


def _value(found: Any, name: str) -> Any:
    section, field = name.split(".")
    return getattr(getattr(found, section), field)
