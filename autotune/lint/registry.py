"""All rules by their id."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.lint.rules import Rule
from autotune.lint.rules_any import ANY
from autotune.lint.rules_deepspeed import DEEPSPEED
from autotune.lint.rules_launchers import LAUNCHERS

RULES: Mapping[str, Rule] = {rule.id: rule for rule in (*ANY, *DEEPSPEED, *LAUNCHERS)}
