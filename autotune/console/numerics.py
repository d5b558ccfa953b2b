"""What was found about numerics: sentences, and how setups did at the gates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

WIDTH = 100  # columns in which sentences are folded; a key is never broken
AT_LEAST = ("activation-headroom", "weights-move")  # gates whose value should be large


def numerics_lines(result: Mapping[str, Any]) -> list[str]:
    """The sentences on numerics below a heading; none where the run has no findings."""
    found = result["numerics"]
    if found is None or not found["words"]:
        return []
    return ["numerics", *(line for sentence in found["words"] for line in _folded(sentence))]


def _folded(sentence: str) -> list[str]:
    return wrap(
        sentence,
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def gate_lines(result: Mapping[str, Any]) -> list[str]:
    """One line a setup that was at the gates: how many it passes, what it fails, its warnings.

    The gate that a setup is refused for is the reason of its outcome, and is not repeated.
    """
    return [_gate_line(row) for row in result["setups"] if row["gates"]]


def _gate_line(row: Mapping[str, Any]) -> str:
    gates = row["gates"]
    failed, warned = (
        [text for text in _texts(gates, status) if text != row["reason"]]
        for status in ("fail", "warn")
    )
    passed = sum(gate["status"] != "fail" for gate in gates)
    count = f"all {passed}" if passed == len(gates) else f"{passed} of {len(gates)}"
    words = [f"passes {count}", *(f"fails {text}" for text in failed)]
    return f"gates  {row['key']}: {'; '.join([*words, *(f'warning of {text}' for text in warned)])}"


def _texts(gates: Sequence[Mapping[str, Any]], status: str) -> list[str]:
    return [f"{gate['gate']}: {gate['text']}" for gate in gates if gate["status"] == status]


def gate_table(result: Mapping[str, Any]) -> Table | None:
    """Values and limits of the setup that the verdict is about, each limit with its source.

    It is the winner; where nothing wins over the baseline, the leading candidate; the baseline
    if there is no candidate either. None where that setup was not at the gates.
    """
    key = result["winner"]
    if key in (None, result["baseline"]):
        key = result["challenger"] or key
    gates = [gate for row in result["setups"] if row["key"] == key for gate in row["gates"]]
    if not gates:
        return None
    title = Text(f"gates of {key}", no_wrap=True, overflow="ignore")
    table = Table(box=None, pad_edge=False, title=title, title_style="", title_justify="left")
    table.add_column("gate")
    table.add_column("value", justify="right")
    table.add_column("limit")
    table.add_column("status")
    table.add_column("source of the limit", overflow="fold")
    for gate in gates:
        value, limit = _number(gate["value"]), _limit(gate)
        table.add_row(gate["gate"], value, limit, gate["status"], escape(gate["source"]))
    return table


def _limit(gate: Mapping[str, Any]) -> str:
    """As in ``at most 0.01``, and whether the user has set it."""
    limit = _number(gate["limit"])
    if limit != "-":
        limit = f"{'at least' if gate['gate'] in AT_LEAST else 'at most'} {limit}"
    return f"{limit} (yours)" if gate["changed"] else limit


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3g}"
