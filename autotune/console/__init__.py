"""Shows events and results to people, with rich. Progress goes to stderr."""

from autotune.console.costs import note_lines, plan_lines, spent_lines
from autotune.console.formats import format_bytes, format_seconds
from autotune.console.lines import describe_probe, event_line
from autotune.console.lint import lint_lines, summary_line
from autotune.console.noise import noise_lines
from autotune.console.numerics import gate_lines, gate_table, numerics_lines
from autotune.console.pace import Pace
from autotune.console.progress import LiveReporter, Reporter, make_console, make_reporter
from autotune.console.result import (
    failure_lines,
    left_lines,
    result_table,
    verdict_lines,
    warning_lines,
)

__all__ = [
    "LiveReporter",
    "Pace",
    "Reporter",
    "describe_probe",
    "event_line",
    "failure_lines",
    "format_bytes",
    "format_seconds",
    "gate_lines",
    "gate_table",
    "left_lines",
    "lint_lines",
    "make_console",
    "make_reporter",
    "noise_lines",
    "note_lines",
    "numerics_lines",
    "plan_lines",
    "result_table",
    "spent_lines",
    "summary_line",
    "verdict_lines",
    "warning_lines",
]
