"""A launch folder: the environment that launch.env makes, and the configuration in it."""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

READERS = {
    "ds_config.json": ("deepspeed", "read"),
    "fsdp_setup.py": ("modules", "read_fsdp"),
    "ddp_setup.py": ("modules", "read_ddp"),
}
TF32 = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"


def read(folder: Path) -> dict[str, Any]:
    """What a script finds that launch.sh starts."""
    return found_in(folder, sourced(folder))


def found_in(folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """What a script finds that is started in an environment, with a configuration beside it."""
    (name,) = (name for name in READERS if (folder / name).exists())
    module, function = READERS[name]
    read = importlib.import_module(f"autotune.consumer.{module}").__dict__[function]
    found: dict[str, Any] = read(folder)
    # torch reads it while it is imported, which here has already happened.
    if found["precision"] == "fp32" and environment[TF32] == "1":
        found["precision"] = "tf32"
    told = {
        "micro_batch": int(environment["AUTOTUNE_MICRO_BATCH"]),
        "gradient_accumulation": int(environment["AUTOTUNE_GRADIENT_ACCUMULATION"]),
    }
    assert all(found.get(knob, value) == value for knob, value in told.items())
    return {**found, **told}


def sourced(folder: Path) -> dict[str, str]:
    """The environment after ``source launch.env``, in a strict shell."""
    command = 'set -euo pipefail; source "$1"; env -0'
    done = subprocess.run(
        ["bash", "-c", command, "bash", str(folder / "launch.env")],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if "=" in entry)
