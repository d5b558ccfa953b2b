"""The sweep file: YAML text in, a `Spec` or a complete list of its faults out."""

from autotune.spec.budget import read_budget
from autotune.spec.read import Budget, Spec, Target, read_spec

__all__ = ["Budget", "Spec", "Target", "read_budget", "read_spec"]
