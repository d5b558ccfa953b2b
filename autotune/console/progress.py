"""Shows events as they come: lines, or a live table on a terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from autotune.console.formats import format_rate, format_ratio, format_seconds
from autotune.console.lines import describe_wire, event_line
from autotune.console.pace import Pace
from autotune.events import (
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
)
from autotune.request import Ask

PIPE_WIDTH = 200  # where there is no terminal, lines are not folded
LIVE_ROWS = 12
READS: Mapping[Ask, str] = {
    "exposure": "reading: communication of",
    "trace": "reading: fp16 training of",
    "sample": "reading: gradients of",
    "gradient": "gates:",
}
"""What runs during a reading, before the setup."""


def make_console(*, stderr: bool) -> Console:
    """A console that honours NO_COLOR and folds nothing when it is not a terminal."""
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)
    return console


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
        line = event_line(event)
        if line is not None:
            self._console.print(line, markup=False, soft_wrap=True)


class LiveReporter(Reporter):
    """A live table: the best so far in this phase, what runs now, and when the phase ends."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._pace = Pace(time.monotonic())
        self._scored: list[ProbeFinished] = []
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
        """Takes the event into the table; what must not scroll by also stays above it."""
        self._pace.take(event, time.monotonic())
        match event:
            case LaunchStarting() | LaunchReady() | LaunchEnded():
                self._status = event_line(event) or ""
            case ProbeStarted():
                self._status = f"probe {event.number}: {event.setup.key}"
            case ReadingStarted():
                self._status = f"{READS[event.ask]} {event.setup.key}"
            case PhaseStarted():
                if event.phase != "numerics":  # readings score nothing; the best stays in sight
                    self._scored.clear()
                super().__call__(event)
            case SetupLeft() | BudgetCut() | Judged():
                super().__call__(event)
            case ProbeFinished():
                if event.ratio is not None:
                    self._scored.append(event)
                if event.probe.outcome.kind != "ok":
                    super().__call__(event)
            case _:
                pass
        self._live.refresh()

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for name in ("best so far", "backward", "tok/s", "vs baseline", "wire"):
            table.add_column(name, justify="left" if name == "best so far" else "right")
        scored = sorted(self._scored, key=lambda event: event.ratio or 0.0, reverse=True)
        for event in scored[:LIVE_ROWS]:
            measurement = event.probe.outcome.measurement
            assert measurement is not None
            table.add_row(
                escape(event.probe.setup.key),
                format_seconds(median(measurement.backward_seconds)),
                format_rate(measurement.median_backward_tokens_per_second),
                format_ratio(event.ratio),
                describe_wire(measurement),
            )
        return Group(table, Text(self._progress()))

    def _progress(self) -> str:
        now = time.monotonic()
        phase = self._pace.phase
        head = f"{phase}: " if phase else ""
        line = f"{head}{self._pace.done} probes in {now - self._pace.started:.0f} s, {self._status}"
        left = self._pace.seconds_left(now)
        return line if left is None else f"{line}, at most {left:.0f} s left of the {phase}"


def make_reporter(console: Console) -> Reporter:
    """A live table on a terminal, plain lines elsewhere."""
    return LiveReporter(console) if console.is_terminal else Reporter(console)
