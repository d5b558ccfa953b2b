"""One line for each event."""

from __future__ import annotations

from statistics import median

from autotune.console.formats import (
    count,
    format_budget,
    format_bytes,
    format_rate,
    format_ratio,
    format_seconds,
)
from autotune.events import (
    BlockStarted,
    BudgetCut,
    Event,
    Judged,
    LaunchEnded,
    LaunchReady,
    LaunchStarting,
    PhaseStarted,
    ProbeFinished,
    ProbeStarted,
    ReadingStarted,
    SetupLeft,
    SweepPlanned,
)
from autotune.outcome import Measurement, Probe


def event_line(event: Event) -> str | None:
    """The line of an event; None for one that people do not care for."""
    match event:
        case SweepPlanned():
            limits = {"minutes": event.minutes, "probes": event.probes}
            return (
                f"{event.setups} setups, {event.measured} already measured; "
                f"budget {format_budget(limits)}"
            )
        case PhaseStarted():
            return _phase_line(event)
        case BlockStarted():
            return f"{event.phase}: block {event.number}, {count(event.entries, 'probe')}"
        case SetupLeft():
            return f"{event.phase}: {event.setup.key} is out, {event.reason}"
        case BudgetCut():
            return f"budget: {event.text}"
        case ProbeFinished():
            return describe_probe(event.probe, event.ratio)
        case Judged():
            return event.text
        case ProbeStarted() | ReadingStarted():
            return None
        case _:
            return _launch_line(event)


def _launch_line(event: LaunchStarting | LaunchReady | LaunchEnded) -> str:
    match event:
        case LaunchStarting():
            return f"launch {event.launch}: starting {count(event.ranks, 'rank')}"
        case LaunchReady():
            return f"launch {event.launch}: warm after {event.seconds:.1f} s"
        case LaunchEnded():
            return f"launch {event.launch}: ended ({event.reason})"


def _phase_line(event: PhaseStarted) -> str:
    """What a phase compares, and how many launches it takes at most."""
    setups = count(event.setups, "setup")
    if event.phase == "search":
        return f"search: {setups}"
    if event.examining:
        return f"gates: {setups}, the baseline included"
    if event.phase == "numerics":
        return f"numerics: {count(event.setups, 'reading')} before the search"
    if event.qualifying:
        return f"race: {setups} near the leader, too many; each is probed once more"
    baseline = "the baseline twice" if event.phase == "confirm" else "the baseline"
    most = "" if event.launches is None else f", at most {count(event.launches, 'launch')}"
    return f"{event.phase}: {setups} and {baseline}{most}"


def describe_probe(probe: Probe, ratio: float | None) -> str:
    """One line on a finished probe; its numbers are those of the median step."""
    outcome, measurement = probe.outcome, probe.outcome.measurement
    head = f"[{probe.number:3d}] {probe.setup.key}"
    if outcome.kind == "pruned":
        return f"{head}  pruned: {outcome.reason} ({format_seconds(outcome.saved_seconds)} saved)"
    if outcome.kind != "ok" or measurement is None:
        return f"{head}  {outcome.kind}: {outcome.reason}"
    skipped = f"  {measurement.skipped_steps} skipped" if measurement.skipped_steps else ""
    return (
        f"{head}  backward {format_seconds(median(measurement.backward_seconds))}  "
        f"{format_rate(measurement.median_backward_tokens_per_second)} tok/s"
        f"{_against(probe, ratio)}  wire {describe_wire(measurement)}{skipped}"
    )


def _against(probe: Probe, ratio: float | None) -> str:
    if probe.control:
        return "  baseline again (A/A)"
    if probe.baseline:
        return "  baseline"
    return "" if ratio is None else f"  {format_ratio(ratio)} baseline"


def describe_wire(measurement: Measurement) -> str:
    """Dtypes and bytes of the gradient collectives, as in ``bf16 4.19 MB``."""
    if not measurement.wire:
        return "none"
    return " + ".join(f"{item.dtype} {format_bytes(item.bytes)}" for item in measurement.wire)
