"""Asks a short-lived process what the machine can do, so that this one never imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from autotune.errors import EnvironmentFailedError
from autotune.launch.extensions import VARIABLE, default_folder

LIMIT_SECONDS = 180
CPU_RANKS = 2  # enough to have a wire


@dataclass(frozen=True, slots=True)
class Machine:
    """What `autotune.probe.describe` found.

    Attributes:
        facts: Versions, devices and capabilities, as JSON types.
    """

    facts: dict[str, Any]

    @property
    def device(self) -> str:
        """``cuda`` or ``cpu``."""
        return str(self.facts["device"])

    @property
    def default_ranks(self) -> int:
        """Every GPU; without one, two CPU ranks."""
        return len(self.facts["gpus"]) or CPU_RANKS

    @property
    def cores(self) -> int:
        """Cores this process may use."""
        return int(self.facts["cores"])


def describe_machine() -> Machine:
    """Runs ``python -m autotune.probe describe``.

    Raises:
        EnvironmentFailedError: torch or DeepSpeed cannot be imported here.
    """
    command = [sys.executable, "-m", "autotune.probe", "describe"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailedError(
            f"Importing torch and DeepSpeed took over {LIMIT_SECONDS} s; "
            f"run {' '.join(command)} to see where it waits."
        ) from error
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise EnvironmentFailedError(
            f"torch and DeepSpeed cannot be imported by {sys.executable}:\n{tail}\n"
            "Install them in this environment, then run autotune doctor."
        )
    return Machine(json.loads(done.stdout.strip().splitlines()[-1]))


def worker_environment(machine: Machine, ranks: int) -> dict[str, str]:
    """Environment of the workers: threads shared out, the accelerator named."""
    environment = dict(os.environ)
    if machine.device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
    environment["OMP_NUM_THREADS"] = str(max(1, machine.cores // ranks))
    environment["PYTHONUNBUFFERED"] = "1"
    environment[VARIABLE] = str(default_folder())
    return environment
