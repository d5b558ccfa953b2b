"""Starting workers, talking to them and surviving them."""

from autotune.launch.describe import Machine, describe_machine
from autotune.launch.local import Burst, Judge, LaunchFailedError, LocalLauncher
from autotune.launch.protocol import Launch, Launcher
from autotune.launch.replay import Answer, Recorded, ReplayLauncher, Source
from autotune.launch.script import ScriptLauncher, plain_command

__all__ = [
    "Answer",
    "Burst",
    "Judge",
    "Launch",
    "LaunchFailedError",
    "Launcher",
    "LocalLauncher",
    "Machine",
    "Recorded",
    "ReplayLauncher",
    "ScriptLauncher",
    "Source",
    "describe_machine",
    "plain_command",
]
