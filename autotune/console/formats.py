"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NEAR_ONE = 0.05  # where the margin decides, two decimals hide what it decides on


def format_seconds(seconds: float | None) -> str:
    """Milliseconds below ten seconds, as in ``83.1 ms``."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"


def format_bytes(size: float | None) -> str:
    """Decimal units, as in ``10.5 MB``."""
    if size is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def format_rate(rate: float | None) -> str:
    """Whole tokens per second with thousands separators."""
    return "-" if rate is None else f"{rate:,.0f}"


def format_ratio(ratio: float | None) -> str:
    """Two decimals and an x."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def format_ratios(ratios: Sequence[float]) -> list[str]:
    """Ratios that are read together: two decimals, or three if one of them is near 1."""
    digits = 3 if any(abs(ratio - 1) < NEAR_ONE for ratio in ratios) else 2
    return [f"{ratio:.{digits}f}x" for ratio in ratios]


def format_share(share: float | None) -> str:
    """Percent with two decimals, as in ``99.90 %``."""
    return "-" if share is None else f"{100 * share:.2f} %"


def count(number: float, noun: str) -> str:
    """``1 launch``, ``2 launches``, ``3 policies``."""
    if number == 1:
        return f"{number:g} {noun}"
    if noun.endswith("y"):
        return f"{number:g} {noun[:-1]}ies"
    return f"{number:g} {noun}{'es' if noun.endswith('ch') else 's'}"


def format_budget(planned: Any) -> str:
    """Limits, as in ``3 minutes or 60 probes``."""
    limits = [
        count(planned[f"{noun}s"], noun)
        for noun in ("minute", "probe")
        if planned[f"{noun}s"] is not None
    ]
    return " or ".join(limits) or "none"
