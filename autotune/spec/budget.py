"""The budget as the command line takes it."""

from __future__ import annotations

import re

from autotune.errors import UsageError
from autotune.spec.read import Budget

MINUTES = {"s": 1 / 60, "m": 1.0, "h": 60.0}
FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|p|probes)")


def read_budget(text: str) -> Budget:
    """Reads ``90s``, ``2m``, ``1.5h`` or ``60p`` (probes).

    Raises:
        UsageError: It is none of these, or nothing.
    """
    found = FORM.fullmatch(text.strip().lower())
    number = float(found.group(1)) if found else 0.0
    unit = found.group(2) if found else ""
    if number == 0 or (unit in ("p", "probes") and not number.is_integer()):
        raise UsageError(
            f"--budget: {text!r} is no budget; allowed: a time such as 90s, 2m or 1.5h, or a "
            "number of probes such as 60p"
        )
    if unit in MINUTES:
        return Budget(minutes=number * MINUTES[unit], probes=None)
    return Budget(minutes=None, probes=int(number))
