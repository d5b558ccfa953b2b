"""Starting workers, talking to them and surviving them."""

from autotune.launch.describe import Machine, describe_machine
from autotune.launch.local import Launch, LaunchFailedError, LocalLauncher

__all__ = ["Launch", "LaunchFailedError", "LocalLauncher", "Machine", "describe_machine"]
