"""The sweep file: YAML text in, a `Spec` or a complete list of its faults out."""

from autotune.spec.budget import read_budget
from autotune.spec.read import Budget, OwnConfig, Spec, Target, read_spec
from autotune.spec.script import Command
from autotune.spec.setup_file import read_setup

__all__ = [
    "Budget",
    "Command",
    "OwnConfig",
    "Spec",
    "Target",
    "read_budget",
    "read_setup",
    "read_spec",
]
