"""What an existing configuration file really does, and what is wrong with it."""

from __future__ import annotations

from autotune.lint.explain import explain
from autotune.lint.fix import Fixed, fix, fixed_path
from autotune.lint.kinds import KINDS, Kind
from autotune.lint.linted import Linted, Skipped, at_least, lint_files
from autotune.lint.registry import RULES
from autotune.lint.report import report, rules_report
from autotune.lint.rules import LEVELS, Level, Rule
from autotune.lint.sarif import sarif
from autotune.lint.versions import installed, named

__all__ = [
    "KINDS",
    "LEVELS",
    "RULES",
    "Fixed",
    "Kind",
    "Level",
    "Linted",
    "Rule",
    "Skipped",
    "at_least",
    "explain",
    "fix",
    "fixed_path",
    "installed",
    "lint_files",
    "named",
    "report",
    "rules_report",
    "sarif",
]
