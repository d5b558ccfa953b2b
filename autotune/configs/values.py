"""The values that DeepSpeed's blocks accept, as pydantic reads them.

Pydantic takes ``"200000000"`` for an integer but not ``"2e8"``, and ``"yes"`` for true. In a
validated block DeepSpeed also takes ``"auto"`` anywhere, for the default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

AUTO = "auto"
INTEGER_TEXT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*(\.0+)?")
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_]+,?|\$\{?\w+\}?,?|<[^<>]+>,?")
BOOL_TEXTS = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a key may hold.

    Attributes:
        words: In the user's words.
        accepts: Whether a value is of this kind.
        inner: Keys of the mapping, where it is one.
        closed: Whether a key that is not among them is an error.
    """

    words: str
    accepts: Callable[[Any], bool]
    inner: Mapping[str, Kind] | None = None
    closed: bool = True


def as_bool(value: Any) -> bool | None:
    """The boolean that pydantic reads; None for none."""
    if isinstance(value, str):
        return BOOL_TEXTS.get(value.lower())
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    return None


def as_int(value: Any) -> int | None:
    """The integer that pydantic reads; None for none."""
    if isinstance(value, str):
        text = value.strip()
        return int(text.split(".")[0]) if INTEGER_TEXT.fullmatch(text) else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(value) if isinstance(value, int) else None


def as_float(value: Any) -> float | None:
    """The finite number that pydantic reads; None for none."""
    if not isinstance(value, str | int | float):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def whole(lowest: int | None = None) -> Kind:
    """Integers, from ``lowest`` on."""
    words = "a whole number" if lowest is None else f"a whole number from {lowest}"

    def accepts(value: Any) -> bool:
        found = as_int(value)
        return found is not None and (lowest is None or found >= lowest)

    return Kind(words, accepts)


def number(lowest: float = -math.inf, highest: float = math.inf) -> Kind:
    """Finite numbers between two bounds, which belong to them."""

    def accepts(value: Any) -> bool:
        found = as_float(value)
        return found is not None and lowest <= found <= highest

    bounds = "" if highest == math.inf else f" between {lowest:g} and {highest:g}"
    return Kind(f"a number{bounds}", accepts)


def one_of(*words: Any) -> Kind:
    """One of a few values."""
    return Kind("one of " + ", ".join(str(word) for word in words), lambda value: value in words)


def any_case(*words: str) -> Kind:
    """One of a few words, in capitals or not."""
    lowered = [word.lower() for word in words]
    return Kind(
        "one of " + ", ".join(words),
        lambda value: isinstance(value, str) and value.lower() in lowered,
    )


def mapping(inner: Mapping[str, Kind], *, closed: bool = True) -> Kind:
    """A block with known keys, and others only where it is not closed."""
    return Kind("a mapping", lambda value: isinstance(value, dict), inner, closed)


def optional(kind: Kind) -> Kind:
    """Null too."""
    words = f"{kind.words} or null"
    return Kind(words, lambda value: value is None or kind.accepts(value), kind.inner, kind.closed)


BOOL = Kind("true or false", lambda value: as_bool(value) is not None)
TEXT = Kind("text", lambda value: isinstance(value, str))
LIST = Kind("a list", lambda value: isinstance(value, list))
TEXTS = Kind(
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
)
FREE = Kind("a mapping", lambda value: isinstance(value, dict))
ANY = Kind("any value", lambda value: True)
