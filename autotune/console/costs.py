"""What a sweep would try and cost, and what it did cost, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.console.formats import count, format_budget
from autotune.outcome import PHASES

NAME = 10  # columns of a phase's name
COUNTED = {"launches": "launch", "probes": "probe"}


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """What a sweep would try, in words, and what it would cost where that is known."""
    axes = [f"  {name}: {', '.join(map(str, values))}" for name, values in plan["axes"].items()]
    removed = [
        f"  {item['count']:5d}  {item['restriction']}: {item['reason']}" for item in plan["removed"]
    ]
    total = len(plan["setups"]) + sum(item["count"] for item in plan["removed"])
    setups = [f"  {key}" for key in plan["setups"]]
    return [
        f"{plan['name']}: {plan['ranks']} ranks on {plan['device']}",
        "knobs:",
        *axes,
        *_closed_lines(plan["closed"]),
        *_scale_lines(plan["scales"]),
        f"{total} combinations, {total - len(setups)} removed" + (":" if removed else ""),
        *removed,
        f"{len(setups)} setups to try:",
        *setups,
        f"baseline: {plan['baseline']}",
        *own_lines(plan.get("own")),
        *([f"command: {plan['command']}"] if plan.get("command") else []),
        *_phase_lines(plan["planned"]),
        f"budget: {format_budget(plan['planned'])}",
    ]


def note_lines(result: Mapping[str, Any]) -> list[str]:
    """What became of the user's own files and configuration, for stderr."""
    return [*result.get("notes", []), *own_lines(result.get("own"))]


def own_lines(own: Mapping[str, Any] | None) -> list[str]:
    """What was found in the user's own configuration file beside its knobs."""
    if own is None:
        return []
    inert = [f"  {item['key']} does nothing: {item['why']}" for item in own["inert"]]
    untried = [
        f"  {item['key']} is carried to the export, but these probes do without it: {item['why']}"
        for item in own["script_only"]
    ]
    return [
        f"your {own['kind']} file: all of it but the knobs stays in every setup",
        *inert,
        *untried,
        *(f"  {note}" for note in own["notes"]),
    ]


def _closed_lines(closed: Sequence[Mapping[str, str]]) -> list[str]:
    """Knobs with a choice that no setup has."""
    if not closed:
        return []
    items = [f"  {item['knob']}: {item['reason']}" for item in closed]
    return ["knobs with one value left:", *items]


def _scale_lines(scales: Mapping[str, int]) -> list[str]:
    """How many loss scales are replayed; they are no setups, so they stand by themselves."""
    if not scales:
        return []
    each = [f"{count(number, 'policy')} of {scaler}" for scaler, number in scales.items()]
    verb = "chosen" if any(number > 1 for number in scales.values()) else "checked"
    return [f"loss scale: {', '.join(each)}, {verb} by replay of a measured trace (no probes)"]


def _phase_lines(planned: Mapping[str, Any]) -> list[str]:
    """Expected cost of each phase as ranges, and where the estimate is from."""
    phases = planned.get("phases")
    if not phases:
        return []
    sums = {
        name: [sum(phases[phase][name][end] for phase in phases) for end in (0, 1)]
        for name in ("launches", "probes", "minutes")
    }
    for name in ("probes", "minutes"):
        if planned.get(name) is not None:
            sums[name] = [min(value, planned[name]) for value in sums[name]]
    source = f", from {planned['from']}" if planned.get("from") else ""
    return [
        f"expected cost{source}:",
        *(f"  {phase:{NAME}}{_ranges(phases[phase], _counted(phase))}" for phase in phases),
        f"  {'in all':{NAME}}{_ranges(sums, COUNTED)}",
    ]


def _counted(phase: str) -> Mapping[str, str]:
    """What is counted in a phase; readings are no probes."""
    return {"launches": "launch"} if phase == "numerics" else COUNTED


def _ranges(cost: Mapping[str, Sequence[float]], counted: Mapping[str, str]) -> str:
    counts = [
        count(cost[name][0], noun) if cost[name] == [1, 1] else f"{_range(cost[name])} {name}"
        for name, noun in counted.items()
    ]
    return ", ".join([*counts, f"{_minutes(cost['minutes'])} minutes"])


def _range(low_high: Sequence[float]) -> str:
    low, high = low_high
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _minutes(low_high: Sequence[float]) -> str:
    low, high = (f"{minutes:.1f}" for minutes in low_high)
    return low if low == high else f"{low} to {high}"


def spent_lines(result: Mapping[str, Any]) -> list[str]:
    """What each phase cost, beside what was planned for it, and what pruning saved."""
    spent, planned = result["spent"], result["planned"]
    expected = planned.get("phases") or {}
    lines = [
        f"{phase:{NAME}}{_spent(phase, spent['phases'][phase], expected.get(phase))}"
        + (_share(spent) if phase == "numerics" else "")
        for phase in PHASES
        if phase in spent["phases"]
    ]
    if spent["wall_seconds"] is not None:
        lines.append(
            f"{'in all':{NAME}}{count(spent['launches'], 'launch')}, "
            f"{count(spent['probes'], 'probe')}, {spent['wall_seconds'] / 60:.1f} minutes; "
            f"budget {format_budget(planned)}"
        )
    if spent["saved_seconds"]:
        lines.append(f"{'pruning':{NAME}}saved {spent['saved_seconds']:.1f} s")
    return lines


def _spent(
    phase: str, cost: Mapping[str, float], expected: Mapping[str, Sequence[float]] | None
) -> str:
    counts = [(name, count(cost[name], noun)) for name, noun in _counted(phase).items()]
    minutes = f"{cost['seconds'] / 60:.1f} minutes"
    if expected is None:
        return ", ".join([*(text for _, text in counts), minutes])
    planned = [f"{text} (planned {_range(expected[name])})" for name, text in counts]
    return ", ".join([*planned, f"{minutes} (planned {_minutes(expected['minutes'])})"])


def _share(spent: Mapping[str, Any]) -> str:
    """The part of the run's time that the numerics took."""
    whole = spent["wall_seconds"]
    if not whole:
        return ""
    return f", {100 * spent['phases']['numerics']['seconds'] / whole:.0f} % of the run"
