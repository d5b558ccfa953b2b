"""Shows events and results to people, with rich. Progress goes to stderr."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from autotune.events import (
    Event,
    LaunchEnded,
    LaunchReady,
    LaunchStarting,
    ProbeFinished,
    ProbeStarted,
    SweepPlanned,
)
from autotune.outcome import Measurement, Probe

PIPE_WIDTH = 200  # where there is no terminal, lines are not folded
LIVE_ROWS = 12


def make_console(*, stderr: bool) -> Console:
    """A console that honours NO_COLOR and folds nothing when it is not a terminal."""
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)
    return console


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


def describe_probe(probe: Probe, ratio: float | None) -> str:
    """One line on a finished probe."""
    outcome, measurement = probe.outcome, probe.outcome.measurement
    head = f"[{probe.number:3d}] {probe.setup.key}"
    if outcome.kind != "ok" or measurement is None:
        return f"{head}  {outcome.kind}: {outcome.reason}"
    against = "baseline" if probe.baseline else f"{format_ratio(ratio)} baseline"
    skipped = f"  {measurement.skipped_steps} skipped" if measurement.skipped_steps else ""
    return (
        f"{head}  backward {format_seconds(_mean(measurement.backward_seconds))}  "
        f"{format_rate(measurement.backward_tokens_per_second)} tok/s  {against}"
        f"  wire {_wire(measurement)}{skipped}"
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _wire(measurement: Measurement) -> str:
    if not measurement.wire:
        return "none"
    return " + ".join(f"{item.dtype} {format_bytes(item.bytes)}" for item in measurement.wire)


class Reporter:
    """Plain lines, one an event."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def __call__(self, event: Event) -> None:
        """Prints the event, if people care for it."""
        line = self._line(event)
        if line is not None:
            self._console.print(line, markup=False, soft_wrap=True)

    def _line(self, event: Event) -> str | None:
        match event:
            case SweepPlanned():
                limits = [
                    f"{event.minutes:g} minutes" if event.minutes is not None else None,
                    f"{event.probes} probes" if event.probes is not None else None,
                ]
                budget = " or ".join(limit for limit in limits if limit)
                return f"{event.setups} setups, {event.measured} already measured; budget {budget}"
            case LaunchStarting():
                return f"launch {event.launch}: starting {event.ranks} ranks"
            case LaunchReady():
                return f"launch {event.launch}: warm after {event.seconds:.1f} s"
            case LaunchEnded():
                return f"launch {event.launch}: ended ({event.reason})"
            case ProbeFinished():
                return describe_probe(event.probe, event.ratio)
            case ProbeStarted():
                return None


class LiveReporter(Reporter):
    """A live table: the best so far, what runs now, and when it ends."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._started = time.monotonic()
        self._plan: SweepPlanned | None = None
        self._finished: list[ProbeFinished] = []
        self._status = "starting"
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> LiveReporter:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Takes the event into the table; failures also stay above it as lines."""
        match event:
            case SweepPlanned():
                self._plan = event
            case LaunchStarting():
                self._status = f"launch {event.launch}: starting {event.ranks} ranks"
            case LaunchReady():
                self._status = f"launch {event.launch}: warm after {event.seconds:.1f} s"
            case ProbeStarted():
                self._status = f"probe {event.number}: {event.setup.key}"
            case ProbeFinished():
                self._finished.append(event)
                if event.probe.outcome.kind != "ok":
                    self._console.print(
                        describe_probe(event.probe, None), markup=False, soft_wrap=True
                    )
            case LaunchEnded():
                self._status = f"launch {event.launch}: ended ({event.reason})"
        self._live.refresh()

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for name in ("best so far", "backward", "tok/s", "vs baseline", "wire"):
            table.add_column(name, justify="left" if name == "best so far" else "right")
        scored = [event for event in self._finished if event.ratio is not None]
        scored.sort(key=lambda event: event.ratio or 0.0, reverse=True)
        for event in scored[:LIVE_ROWS]:
            measurement = event.probe.outcome.measurement
            assert measurement is not None
            table.add_row(
                escape(event.probe.setup.key),
                format_seconds(_mean(measurement.backward_seconds)),
                format_rate(measurement.backward_tokens_per_second),
                format_ratio(event.ratio),
                _wire(measurement),
            )
        return Group(table, Text(self._progress()))

    def _progress(self) -> str:
        seconds = time.monotonic() - self._started
        done = len(self._finished)
        line = f"{done} probes in {seconds:.0f} s, {self._status}"
        left = self._seconds_left(seconds, done)
        return line if left is None else f"{line}, at most {left:.0f} s left"

    def _seconds_left(self, seconds: float, done: int) -> float | None:
        """An upper bound from the budget and from the setups that are still to be measured."""
        if self._plan is None or done == 0:
            return None
        setups = self._plan.setups - self._plan.measured
        bounds = [setups * 1.25 * seconds / done - seconds]
        if self._plan.minutes is not None:
            bounds.append(self._plan.minutes * 60 - seconds)
        if self._plan.probes is not None:
            bounds.append((self._plan.probes - done) * seconds / done)
        return max(0.0, min(bounds))


def make_reporter(console: Console) -> Reporter:
    """A live table on a terminal, plain lines elsewhere."""
    return LiveReporter(console) if console.is_terminal else Reporter(console)


def result_table(result: Mapping[str, Any]) -> Table:
    """Every setup of a result, the best first."""
    table = Table(box=None, pad_edge=False, title=None)
    table.add_column("setup", overflow="fold")
    columns = "outcome|vs baseline|forward|backward|step|backward tok/s|end-to-end tok/s"
    for name in (*columns.split("|"), "wire", "calls", "memory", "skipped", "probes"):
        table.add_column(name, justify="right")
    for row in result["setups"]:
        wire = row["wire"]
        name = escape(row["key"])
        table.add_row(
            f"{name} (baseline)" if row["key"] == result["baseline"] else name,
            row["outcome"],
            format_ratio(row["ratio"]),
            format_seconds(row["forward_seconds"]),
            format_seconds(row["backward_seconds"]),
            format_seconds(row["step_seconds"]),
            format_rate(row["backward_tokens_per_second"]),
            format_rate(row["end_to_end_tokens_per_second"]),
            f"{wire['dtype']} {format_bytes(wire['bytes'])}" if wire else "-",
            str(wire["calls"]) if wire else "-",
            format_bytes(row["peak_memory_bytes"]),
            "-" if row["skipped_steps"] is None else str(row["skipped_steps"]),
            str(row["probes"]),
        )
    return table


def verdict_lines(result: Mapping[str, Any]) -> list[str]:
    """The verdict in words, for the end of a sweep and the head of ``show``."""
    if result["winner"] is None:
        return [f"{result['verdict'].upper()}  nothing could be measured"]
    if result["winner"] == result["baseline"]:
        return [f"{result['verdict'].upper()}  no setup beat the baseline {result['baseline']}"]
    return [
        f"{result['verdict'].upper()}  {result['winner']}  "
        f"{result['ratio']:.2f}x the backward throughput of the baseline, "
        f"{result['end_to_end_ratio']:.2f}x end-to-end",
        f"baseline     {result['baseline']}",
    ]


def failure_lines(result: Mapping[str, Any]) -> list[str]:
    """One line a setup that failed, with its reason."""
    return [
        f"{row['outcome']}  {row['key']}: {row['reason']}"
        for row in result["setups"]
        if row["outcome"] != "ok"
    ]


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """What a sweep would try, in words."""
    axes = [f"  {name}: {', '.join(map(str, values))}" for name, values in plan["axes"].items()]
    removed = [
        f"  {item['count']:5d}  {item['restriction']}: {item['reason']}" for item in plan["removed"]
    ]
    total = len(plan["setups"]) + sum(item["count"] for item in plan["removed"])
    setups = [f"  {key}" for key in plan["setups"]]
    budget = plan["planned"]
    limits = [
        f"{budget['minutes']:g} minutes" if budget["minutes"] is not None else None,
        f"{budget['probes']} probes" if budget["probes"] is not None else None,
    ]
    return [
        f"{plan['name']}: {plan['ranks']} ranks on {plan['device']}",
        "knobs:",
        *axes,
        f"{total} combinations, {total - len(setups)} removed" + (":" if removed else ""),
        *removed,
        f"{len(setups)} setups to try:",
        *setups,
        f"baseline: {plan['baseline']}",
        f"budget: {' or '.join(limit for limit in limits if limit)}",
    ]
