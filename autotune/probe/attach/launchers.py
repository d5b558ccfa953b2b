"""Sees a script that starts the processes of a training itself."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import torch.multiprocessing

from autotune.errors import UsageError

PROGRAMS = frozenset({"torchrun", "deepspeed", "mpirun", "mpiexec", "srun"})
MODULES = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "deepspeed.launcher.runner",
        "deepspeed.launcher.launch",
    }
)
SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
# Audit events that start a program, and where in their arguments its own are.
EVENTS = {"subprocess.Popen": 1, "os.posix_spawn": 1, "os.exec": 1, "os.system": 0}


class LauncherWatch:
    """An audit hook that refuses launchers.

    They would train without end, beside the ranks that are to be measured.

    Attributes:
        events: That it wants to hear of.
        seen: Command line of one that was refused.
    """

    events = tuple(EVENTS)

    def __init__(self) -> None:
        self.seen: str | None = None

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Hears of every program that Python starts.

        Raises:
            UsageError: It is a launcher.
        """
        words = _words(arguments[EVENTS[event]])
        if is_launcher(words):
            self.seen = shlex.join(words)
            raise UsageError(own_launcher(self.seen))

    def refuse_spawning(self) -> None:
        """Refuses ``torch.multiprocessing.spawn``, too, of which no audit event tells."""

        def start_processes(function: Any, *args: Any, **kwargs: Any) -> None:
            name = getattr(function, "__name__", repr(function))
            self.seen = f"torch.multiprocessing.spawn({name})"
            raise UsageError(own_launcher(self.seen))

        module: Any = sys.modules["torch.multiprocessing.spawn"]
        package: Any = torch.multiprocessing
        module.start_processes = package.start_processes = start_processes


def own_launcher(command: str) -> str:
    """What is wrong with a script that runs a launcher."""
    return f"The script started its own launcher: {command}; give autotune the inner script."


def is_launcher(words: Sequence[str]) -> bool:
    """Whether a command line starts the processes of a training.

    ``deepspeed --version`` and the like do not: a launcher is given a script or a module.
    """
    if not words:
        return False
    program = PurePath(words[0]).name
    if program in SHELLS and "-c" in words[1:-1]:
        return is_launcher(_split(words[-1]))
    given = any(word.endswith(".py") or word in ("-m", "--module") for word in words[1:])
    if program in PROGRAMS:
        return given
    if program == "accelerate":
        return "launch" in words[1:2]
    if program.startswith("python") and "-m" in words[1:-1]:
        module = words[words.index("-m") + 1]
        return module in MODULES or (module == "accelerate" and "launch" in words)
    return False


def _words(command: Any) -> list[str]:
    if isinstance(command, str | bytes | os.PathLike):
        return _split(os.fsdecode(command))
    return [os.fsdecode(word) for word in command or ()]


def _split(line: str) -> list[str]:
    """The words of a shell's line, up to the end of its first command."""
    try:
        words = shlex.split(line)
    except ValueError:
        return []
    # Variables may be set before the program, and `exec` stand there.
    while words and ("=" in words[0] or words[0] == "exec"):
        words.pop(0)
    return words
