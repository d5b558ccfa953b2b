"""The key that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LIKENESS = 0.75  # below it, difflib finds likeness in "monitor_config" and "comms_logger"


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like it, if one is."""
    found = difflib.get_close_matches(word[:60].strip().lower(), list(known), 1, LIKENESS)
    return found[0] if found else None
