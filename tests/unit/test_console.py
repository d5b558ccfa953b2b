"""Progress for people, on a terminal and elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from autotune.console import LiveReporter, Reporter, make_reporter, plan_lines
from autotune.events import (
    Event,
    LaunchEnded,
    LaunchReady,
    LaunchStarting,
    ProbeFinished,
    ProbeStarted,
    SweepPlanned,
)
from tests.build import make_probe, make_setup

BF16 = make_setup(precision="bf16", grad_comm_dtype="bf16")
EVENTS: tuple[Event, ...] = (
    SweepPlanned(setups=2, measured=0, probes=10, minutes=3),
    LaunchStarting(launch=0, ranks=2),
    LaunchReady(launch=0, seconds=4.2),
    ProbeStarted(number=0, setup=make_setup(), baseline=True),
    ProbeFinished(probe=make_probe(0, baseline=True), ratio=None),
    ProbeFinished(probe=make_probe(1, BF16, backward=0.05), ratio=2.0),
    ProbeFinished(probe=make_probe(2, make_setup(zero_stage=3), kind="oom"), ratio=None),
    LaunchEnded(launch=0, reason="exhausted"),
)


def shown(*, terminal: bool) -> tuple[Reporter, str]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=150, height=40)
    with make_reporter(console) as reporter:
        for event in EVENTS:
            reporter(event)
    return reporter, file.getvalue()


def test_elsewhere_every_event_that_matters_is_one_plain_line() -> None:
    reporter, text = shown(terminal=False)
    assert not isinstance(reporter, LiveReporter)
    lines = text.splitlines()
    assert lines[:3] == [
        "2 setups, 0 already measured; budget 3 minutes or 10 probes",
        "launch 0: starting 2 ranks",
        "launch 0: warm after 4.2 s",
    ]
    assert [line[:5] for line in lines[3:6]] == ["[  0]", "[  1]", "[  2]"]
    assert lines[-1] == "launch 0: ended (exhausted)"
    assert "\x1b" not in text


def test_a_long_line_is_not_folded_where_there_is_no_terminal() -> None:
    file = io.StringIO()
    Reporter(Console(file=file, width=40))(EVENTS[5])
    assert len(file.getvalue().splitlines()) == 1


def test_a_terminal_shows_the_best_so_far_the_progress_and_what_failed() -> None:
    reporter, text = shown(terminal=True)
    assert isinstance(reporter, LiveReporter)
    assert "best so far" in text
    assert BF16.key in text
    assert "2.00x" in text
    assert "3 probes in" in text
    assert "at most" in text
    assert "oom: because" in text


def test_a_plan_says_what_is_tried_and_what_was_removed_and_why() -> None:
    lines = plan_lines(
        {
            "name": "tried",
            "ranks": 2,
            "device": "cpu",
            "axes": {"precision": ["fp32", "bf16"]},
            "setups": [BF16.key],
            "baseline": make_setup().key,
            "removed": [{"restriction": "no-fp32", "count": 1, "reason": "why"}],
            "planned": {"setups": 1, "probes": None, "minutes": 3},
        }
    )
    assert "2 combinations, 1 removed:" in lines
    assert "      1  no-fp32: why" in lines
    assert f"  {BF16.key}" in lines
    assert lines[-1] == "budget: 3 minutes"
