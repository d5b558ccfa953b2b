"""A result in words and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from autotune.console.formats import (
    format_bytes,
    format_rate,
    format_ratio,
    format_ratios,
    format_seconds,
    format_share,
)

NAME = 13  # columns of what a line is about
USEFUL = "useful"
COLUMNS = (
    *("role", "outcome", "search", "forward", "backward", "step", "backward tok/s", "all steps"),
    *("end-to-end", "wire", "calls", "memory", "skipped", USEFUL, "probes"),
)


def verdict_lines(result: Mapping[str, Any]) -> list[str]:
    """The verdict in words, for the end of a sweep and the head of ``show``."""
    if result["verdict"] == "unconfirmed":
        return [*_replay(result), *_unconfirmed(result)]
    heads = {
        "confirmed": _confirmed,
        "keep-baseline": _keep_baseline,
        "inconclusive": _inconclusive,
    }
    return [
        *_replay(result),
        *heads[result["verdict"]](result),
        *_others(result),
        *_alike(result),
        *_screening(result),
        *_noise(result),
    ]


def _replay(result: Mapping[str, Any]) -> list[str]:
    return ["REPLAY  of recorded probes; nothing was measured for it"] if result["replay"] else []


def _unconfirmed(result: Mapping[str, Any]) -> list[str]:
    if result["winner"] is None:
        return ["UNCONFIRMED  nothing could be measured"]
    if result["winner"] == result["baseline"]:
        return [f"UNCONFIRMED  no setup beat the baseline {result['baseline']}"]
    return [
        f"UNCONFIRMED  {result['winner']}  "
        f"{result['ratio']:.2f}x the backward throughput of the baseline, "
        f"{result['end_to_end_ratio']:.2f}x end-to-end",
        _line("baseline", result["baseline"]),
        *_noise(result),
    ]


def _confirmed(result: Mapping[str, Any]) -> list[str]:
    return [
        f"CONFIRMED  {result['winner']}  {_claim(result)}",
        _line("baseline", result["baseline"]),
    ]


def _keep_baseline(result: Mapping[str, Any]) -> list[str]:
    head = f"KEEP-BASELINE  no setup is better than yours, {result['baseline']}: {result['why']}"
    if result["challenger"] is None:
        return [head]
    return [head, _line("challenger", f"{result['challenger']}  {_claim(result)}")]


def _inconclusive(result: Mapping[str, Any]) -> list[str]:
    head = f"INCONCLUSIVE  {result['why']}"
    if result["challenger"] is None:
        return [head, _line("baseline", result["baseline"])]
    return [
        head,
        _line("leading", f"{result['challenger']}  {_claim(result)}"),
        _line("baseline", result["baseline"]),
    ]


def _line(name: str, text: str) -> str:
    return f"{name:{NAME}}{text}"


def _claim(result: Mapping[str, Any]) -> str:
    """The ratio, its interval and what they rest on."""
    ratio, low, high = format_ratios([result["ratio"], *result["interval"]])
    (whole,) = format_ratios([result["end_to_end_ratio"]])
    return (
        f"{ratio} the backward throughput of the baseline ({100 * result['confidence']:.3g} % "
        f"interval {low} to {high}, {result['launches']} launches), {whole} end-to-end"
    )


def _others(result: Mapping[str, Any]) -> list[str]:
    """The candidates that the verdict's first lines do not speak of."""
    lines = []
    for item in result["candidates"]:
        if item["key"] != result["challenger"]:
            ratio, low, high = format_ratios([item["ratio"], *item["interval"]])
            (whole,) = format_ratios([item["end_to_end_ratio"]])
            text = f"{item['key']}  {ratio} ({low} to {high}), {whole} end-to-end"
            lines.append(_line("also", text))
    return lines


def _alike(result: Mapping[str, Any]) -> list[str]:
    if len(result["equivalent"]) < 2:
        return []
    return [f"cannot be told apart: {', '.join(result['equivalent'])}"]


def _screening(result: Mapping[str, Any]) -> list[str]:
    screening = result["screening"]
    if screening is None or screening["ratio"] is None:
        return []
    whose = "" if screening["winner"] == result["challenger"] else f" of {screening['winner']}"
    text = f"{screening['ratio']:.2f}x{whose} (optimistic: the best of many single noisy probes)"
    return [_line("screening", text)]


def _noise(result: Mapping[str, Any]) -> list[str]:
    floor = result["noise_floor"]
    return [] if floor is None else [_line("noise floor", f"{100 * floor:.1f} %")]


def failure_lines(result: Mapping[str, Any]) -> list[str]:
    """One line a setup that was never measured to the end, with its reason."""
    return [
        f"{row['outcome']}  {row['key']}: {row['reason']}"
        for row in result["setups"]
        if row["outcome"] != "ok"
    ]


def left_lines(result: Mapping[str, Any]) -> list[str]:
    """One line a setup that was measured and left, with the phase and the reason."""
    phases = {
        "screening": (result["screening"] or {}).get("dropped", []),
        "race": (result["race"] or {}).get("out", []),
        "confirm": (result["confirmation"] or {}).get("out", []),
    }
    return [
        f"{phase}  {item['key']}: {item['reason']}"
        for phase, items in phases.items()
        for item in items
    ]


def warning_lines(result: Mapping[str, Any]) -> list[str]:
    """The warnings, one a line, for stderr."""
    return [f"warning: {item['text']} {item['advice']}" for item in result["warnings"]]


def result_table(result: Mapping[str, Any]) -> Table:
    """Every setup of a result, the best of the search first.

    Its columns are: the ratio in the search; times and throughput over the probes of all
    phases, the backward at the median step and over all steps. ``useful`` is the share of the
    real run's steps that apply an update; the column is there if any setup has one.
    """
    table = Table(box=None, pad_edge=False, title=None)
    rows = result["setups"]
    columns = [name for name in COLUMNS if name != USEFUL or any(map(_useful, rows))]
    table.add_column("setup", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right")
    roles = _roles(result)
    for row in rows:
        cells = _cells(row, roles.get(row["key"], ""))
        table.add_row(escape(row["key"]), *(cells[name] for name in columns))
    return table


def _useful(row: Mapping[str, Any]) -> bool:
    return row["useful_step_fraction"] is not None


def _cells(row: Mapping[str, Any], role: str) -> dict[str, str]:
    """What a row shows, by column."""
    wire = row["wire"]
    return {
        "role": role,
        "outcome": row["outcome"],
        "search": format_ratio(row["ratio"]),
        "forward": format_seconds(row["forward_seconds"]),
        "backward": format_seconds(row["backward_seconds"]),
        "step": format_seconds(row["step_seconds"]),
        "backward tok/s": format_rate(row["median_backward_tokens_per_second"]),
        "all steps": format_rate(row["backward_tokens_per_second"]),
        "end-to-end": format_rate(row["end_to_end_tokens_per_second"]),
        "wire": f"{wire['dtype']} {format_bytes(wire['bytes'])}" if wire else "-",
        "calls": str(wire["calls"]) if wire else "-",
        "memory": format_bytes(row["peak_memory_bytes"]),
        "skipped": "-" if row["skipped_steps"] is None else str(row["skipped_steps"]),
        USEFUL: format_share(row["useful_step_fraction"]),
        "probes": str(row["probes"]),
    }


def _roles(result: Mapping[str, Any]) -> dict[str, str]:
    """How far each setup came; later roles replace earlier ones."""
    entrants = (result["screening"] or {}).get("entrants", [])
    return {
        **{item["key"]: "race" for item in entrants},
        **{item["key"]: "candidate" for item in result["candidates"]},
        **({result["winner"]: "winner"} if result["winner"] else {}),
        result["baseline"]: "baseline",
    }
