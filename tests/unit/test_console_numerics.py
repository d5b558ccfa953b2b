"""Numerics for people: sentences, gates, readings as they come, and what all of it costs."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from autotune import cli
from autotune.console import (
    Pace,
    gate_lines,
    gate_table,
    make_reporter,
    numerics_lines,
    plan_lines,
    result_table,
    spent_lines,
)
from autotune.console.numerics import AT_LEAST, WIDTH
from autotune.events import Event, Judged, PhaseStarted, ProbeFinished, ReadingStarted, SweepPlanned
from autotune.numerics.findings import Examined
from autotune.numerics.gates import judge, refusal
from autotune.numerics.names import gates_name
from autotune.numerics.thresholds import THRESHOLDS, Thresholds
from autotune.readings import GradientReading
from autotune.report import build_result
from autotune.request import Ask
from autotune.search import Store
from autotune.setup import Setup
from autotune.wiring import Session
from tests.build import make_probe, make_setup
from tests.readings import make_gradient_reading
from tests.records import BASELINE, BF16, FSDP, GAIN, NO_GAIN, Series, about_of, run_of

WORDS = (
    "The backward pass of deepspeed stages 0 and 1 waits 12 % of its time for communication: "
    "fewer bytes on the wire can gain at most 1.14x.",
    f"{BF16.key} passes all gates.",
)
GAINS: Series = {BF16: GAIN}
EXAMINING = PhaseStarted(phase="numerics", setups=3, launches=None, examining=True)


def result_of(
    gains: Series = GAINS,
    *,
    rows: Mapping[Setup, Mapping[str, Any]] | None = None,
    words: Sequence[str] = (),
    **about: Any,
) -> dict[str, Any]:
    """A result with ``words`` on numerics, and with ``rows`` in place of parts of the setups'."""
    result = build_result("tried", run_of(gains), about_of(*gains, **about), run="runs/tried")
    changes = {setup.key: change for setup, change in (rows or {}).items()}
    usual: dict[str, Any] = {"gates": [], "useful_step_fraction": None}
    setups = [{**row, **usual, **changes.get(row["key"], {})} for row in result["setups"]]
    return {**result, "setups": setups, "numerics": {"words": list(words)} if words else None}


def at_gates(setup: Setup, limits: Mapping[str, float], reading: GradientReading) -> dict[str, Any]:
    """The parts of a setup's row that the gates decide."""
    gates = judge(setup, reading, Thresholds(limits))
    found: dict[str, Any] = {"gates": [asdict(gate) for gate in gates]}
    failed = refusal(gates)
    if failed is not None and setup != BASELINE:
        found |= {"outcome": "unsafe", "reason": f"{failed.gate}: {failed.text}"}
    return found


def printed(table: RenderableType | None, width: int = 200) -> list[str]:
    assert table is not None
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def shown(*events: Event, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=150, height=40, highlight=False)
    with make_reporter(console) as reporter:
        for event in events:
            reporter(event)
    return file.getvalue()


def test_the_words_on_numerics_stand_below_a_heading_and_are_folded_between_words() -> None:
    assert numerics_lines(result_of(words=WORDS)) == [
        "numerics",
        "  The backward pass of deepspeed stages 0 and 1 waits 12 % of its time for communication: "
        "fewer",
        "    bytes on the wire can gain at most 1.14x.",
        f"  {BF16.key} passes all gates.",
    ]


@given(
    words=st.lists(st.sampled_from(["gain", "1.0005", "x" * 120, BF16.key, "-", "%"]), min_size=1)
)
def test_folding_loses_no_word_and_breaks_no_key(words: list[str]) -> None:
    lines = numerics_lines({"numerics": {"words": [" ".join(words)]}})
    assert [word for line in lines[1:] for word in line.split()] == words
    assert all(len(line) <= WIDTH or len(line.split()) == 1 for line in lines)


def test_a_run_without_findings_says_nothing_of_numerics() -> None:
    assert numerics_lines(result_of()) == []
    assert numerics_lines({"numerics": {"words": []}}) == []
    assert gate_lines(result_of()) == []
    assert gate_table(result_of()) is None


def test_a_setup_that_passes_every_gate_has_a_line_that_says_so() -> None:
    reading = make_gradient_reading()
    gates = at_gates(BF16, {}, reading)
    assert gate_lines(result_of(rows={BF16: gates})) == [
        f"gates  {BF16.key}: passes all {len(gates['gates'])}"
    ]


def test_a_warning_is_told_with_its_words_and_counts_as_passed() -> None:
    gates = at_gates(BF16, {}, make_gradient_reading(relative_error=0.03))
    (line,) = gate_lines(result_of(rows={BF16: gates}))
    assert line == (
        f"gates  {BF16.key}: passes all {len(gates['gates'])}; warning of relative-error: the "
        "gradient's relative error against fp32 is 0.03, over 0.02; refused over 0.1"
    )


def test_the_gate_that_a_setup_is_refused_for_is_not_repeated_but_its_other_failures_are() -> None:
    gates = at_gates(BF16, {}, make_gradient_reading(gain=0.5, moved_fraction=0.1))
    assert gates["reason"].startswith("gain: ")
    (line,) = gate_lines(result_of(rows={BF16: gates}))
    number = len(gates["gates"])
    assert line.startswith(f"gates  {BF16.key}: passes {number - 2} of {number}; fails weights-")
    assert "gain: " not in line


def test_a_baseline_that_fails_is_told_why_since_it_is_never_refused() -> None:
    gates = at_gates(BASELINE, {}, make_gradient_reading(gain=0.5, relative_error=1e-6))
    (line,) = gate_lines(result_of(rows={BASELINE: gates}))
    assert "; fails gain: the applied gradient is 0.5 times that of fp32, not within 1" in line


def test_the_table_shows_each_value_beside_its_limit_and_the_limit_s_source() -> None:
    gates = at_gates(BF16, {"weights-move": 0.25}, make_gradient_reading())
    table = printed(gate_table(result_of(rows={BF16: gates})), width=240)
    assert table[0] == f"gates of {BF16.key}"
    assert table[1].split() == ["gate", "value", "limit", "status", "source", "of", "the", "limit"]
    rows = {line.split()[0]: line for line in table[2:]}
    assert set(rows) == {gate["gate"] for gate in gates["gates"]}
    assert rows["gain"].split() == [
        *("gain", "0.0005", "at", "most", "0.01", "pass", THRESHOLDS["gain"].source)
    ]
    assert "0.99  at least 0.25 (yours)  pass" in rows["weights-move"]
    assert "(yours)" not in rows["gain"]


@pytest.mark.parametrize("number", [None, math.nan])
def test_what_is_no_number_is_a_dash(number: float | None) -> None:
    gates = at_gates(BF16, {}, make_gradient_reading())
    (first, *rest) = gates["gates"]
    odd = {"gates": [{**first, "value": number, "limit": number}, *rest]}
    row = printed(gate_table(result_of(rows={BF16: odd})))[2]
    assert row.split()[:4] == ["finite-forward", "-", "-", "pass"]


def test_gates_that_ask_for_a_large_value_are_known_as_such() -> None:
    large = {gate for gate, item in THRESHOLDS.items() if item.meaning.endswith("at least")}
    least = "log2 of the largest number of fp16 over the largest activation, at least"
    assert THRESHOLDS["activation-headroom"].meaning == least
    assert set(AT_LEAST) == large


def test_a_narrow_terminal_folds_the_source_and_not_the_numbers() -> None:
    gates = at_gates(BF16, {}, make_gradient_reading())
    table = printed(gate_table(result_of(rows={BF16: gates})), width=90)
    assert table[0] == f"gates of {BF16.key}"
    (row,) = [line for line in table if line.startswith("relative-error")]
    assert "0.008  at most 0.1" in row
    assert len(table) > len(gates["gates"]) + 2


def test_where_the_baseline_is_kept_the_table_is_about_its_best_challenger() -> None:
    reading = make_gradient_reading(relative_error=1e-6, cosine=1.0, worst_tensor_error=1e-6)
    rows = {setup: at_gates(setup, {}, reading) for setup in (BASELINE, BF16)}
    result = result_of({BF16: NO_GAIN}, rows=rows)
    assert result["winner"] == BASELINE.key
    assert printed(gate_table(result))[0] == f"gates of {BF16.key}"
    alone = {**result, "challenger": None}
    assert printed(gate_table(alone))[0] == f"gates of {BASELINE.key}"


def test_the_table_of_setups_has_useful_steps_only_where_any_setup_has_them() -> None:
    before = printed(result_table(result_of()))
    assert "useful" not in before[0]
    lines = printed(result_table(result_of(rows={BF16: {"useful_step_fraction": 0.999}})), 240)
    assert lines[0].split()[-3:] == ["skipped", "useful", "probes"]
    rows = {line.split()[0]: line.split() for line in lines[1:]}
    assert rows[BF16.key][-3:-1] == ["99.90", "%"]
    assert rows[BASELINE.key][-2] == "-"


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ("exposure", "reading: communication of"),
        ("trace", "reading: fp16 training of"),
        ("sample", "reading: gradients of"),
        ("gradient", "gates:"),
    ],
)
def test_a_terminal_says_what_is_read_of_which_setup(ask: Ask, words: str) -> None:
    started = ReadingStarted(ask=ask, setup=FSDP)
    assert f", {words} {FSDP.key}" in shown(started, terminal=True)
    assert shown(started, terminal=False) == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_reading_came_to_stays_on_the_screen(terminal: bool) -> None:
    text = f"{FSDP.key}: passes 10 gates"
    lines = shown(EXAMINING, Judged(text=text), terminal=terminal).splitlines()
    assert any(line.endswith("gates: 3 setups, the baseline included") for line in lines)
    assert any(line.endswith(text) for line in lines)


def test_the_best_of_the_search_stays_in_sight_while_setups_are_at_the_gates() -> None:
    found = ProbeFinished(probe=make_probe(1, BF16, backward=0.05), ratio=2.0)
    search = PhaseStarted(phase="search", setups=2, launches=None)
    race = PhaseStarted(phase="race", setups=2, launches=8)
    text = shown(search, found, EXAMINING, terminal=True)
    assert BF16.key in text[text.rindex("best so far") :]
    text = shown(search, found, EXAMINING, race, terminal=True)
    assert BF16.key not in text[text.rindex("best so far") :]


def test_nothing_but_the_minutes_of_the_budget_bounds_the_time_of_readings() -> None:
    pace = Pace(started=0.0)
    pace.take(replace(EXAMINING, examining=False), 0.0)
    assert pace.seconds_left(30.0) is None  # before the search nothing of the plan is known
    pace.take(SweepPlanned(setups=8, measured=0, probes=20, minutes=None), 30.0)
    pace.take(PhaseStarted(phase="search", setups=8, launches=None), 30.0)
    pace.take(ProbeFinished(probe=make_probe(0), ratio=None), 32.0)
    pace.take(EXAMINING, 32.0)
    assert pace.seconds_left(40.0) is None
    pace.take(SweepPlanned(setups=8, measured=0, probes=20, minutes=1), 40.0)
    assert pace.seconds_left(40.0) == pytest.approx(20.0)


def test_the_time_of_readings_does_not_slow_the_pace_of_probes() -> None:
    pace = Pace(started=0.0)
    pace.take(EXAMINING, 10.0)
    pace.take(SweepPlanned(setups=100, measured=0, probes=5, minutes=None), 90.0)
    pace.take(PhaseStarted(phase="search", setups=100, launches=None), 90.0)
    pace.take(ProbeFinished(probe=make_probe(0), ratio=None), 92.0)
    assert pace.seconds_left(92.0) == pytest.approx(4 * (10 + 2))


NUMERICS = {"launches": [2, 2], "probes": [0, 0], "minutes": [0.4, 0.9]}
COST = {"launches": 1, "probes": 0, "seconds": 30.0, "launch_seconds": 9.0, "probe_seconds": 0.0}


def spent_with(cost: Mapping[str, float], **planned: Any) -> str:
    spent = {"numerics": cost, **about_of()["spent"]}
    limits = {"probes": None, "minutes": 3, **planned}
    return spent_lines(result_of(spent=spent, planned=limits))[0]


def test_numerics_has_a_cost_without_probes_and_a_share_of_the_run() -> None:
    assert spent_with(COST, phases={"numerics": NUMERICS}) == (
        "numerics  1 launch (planned 2), 0.5 minutes (planned 0.4 to 0.9), 20 % of the run"
    )
    assert spent_with(COST) == "numerics  1 launch, 0.5 minutes, 20 % of the run"


def test_a_run_that_took_no_time_has_no_share_of_it() -> None:
    nothing = {**COST, "launches": 0, "seconds": 0.0}
    result = {
        "planned": {"probes": 3, "minutes": None},
        "spent": {
            "phases": {"numerics": nothing},
            "wall_seconds": 0.0,
            "launches": 0,
            "probes": 0,
            "saved_seconds": 0.0,
        },
    }
    assert spent_lines(result)[0] == "numerics  0 launches, 0.0 minutes"


def plan(**changes: Any) -> dict[str, Any]:
    return {
        "name": "tried",
        "ranks": 1,
        "device": "cpu",
        "axes": {"precision": ["fp32", "fp16"], "grad_comm_dtype": ["fp32", "bf16"]},
        "setups": [BF16.key],
        "baseline": make_setup().key,
        "removed": [],
        "closed": [],
        "scales": {},
        "planned": {"setups": 1, "probes": None, "minutes": 3},
        **changes,
    }


def test_a_plan_says_what_numerics_costs_without_probes() -> None:
    search = {"launches": [1, 1], "probes": [7, 7], "minutes": [0.4, 0.6]}
    planned = {**plan()["planned"], "phases": {"numerics": NUMERICS, "search": search}}
    assert plan_lines(plan(planned=planned))[-4:-1] == [
        "  numerics  2 launches, 0.4 to 0.9 minutes",
        "  search    1 launch, 7 probes, 0.4 to 0.6 minutes",
        "  in all    3 launches, 7 probes, 0.8 to 1.5 minutes",
    ]


def test_a_plan_says_which_knobs_have_one_value_left_and_why() -> None:
    closed = {"knob": "grad_comm_dtype", "reason": "with one rank no gradient crosses a wire"}
    lines = plan_lines(plan(closed=[closed]))
    after = lines.index("knobs with one value left:") + 1
    assert lines[after] == "  grad_comm_dtype: with one rank no gradient crosses a wire"
    assert "knobs with one value left:" not in plan_lines(plan())


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        ({"deepspeed": 96}, "96 policies of deepspeed, chosen"),
        (
            {"deepspeed": 96, "grad-scaler": 1},
            "96 policies of deepspeed, 1 policy of grad-scaler, chosen",
        ),
        ({"deepspeed": 1}, "1 policy of deepspeed, checked"),
    ],
)
def test_a_plan_says_that_loss_scales_cost_no_probes(scales: dict[str, int], words: str) -> None:
    line = f"loss scale: {words} by replay of a measured trace (no probes)"
    assert line in plan_lines(plan(scales=scales))
    assert not any("loss scale" in line for line in plan_lines(plan()))


def test_show_prints_the_words_below_the_verdict_and_the_gates_below_the_setups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = result_of(rows={BF16: at_gates(BF16, {}, make_gradient_reading())}, words=WORDS)
    Store(tmp_path / "tried", create=True)
    monkeypatch.setattr("autotune.wiring.open_run", lambda run: Store(run, create=False))
    monkeypatch.setattr("autotune.wiring.result_of", lambda store: result)
    done = CliRunner().invoke(cli.app, ["show", str(tmp_path / "tried")])
    assert done.exit_code == 0, done.output
    parts = ("noise floor", "numerics\n", "setup ", "gates of", "oom  ", "gates  ", "race  ")
    places = [done.stdout.index(f"\n{part}") for part in parts]
    assert places == sorted(places)


def test_what_the_report_makes_of_real_findings_can_be_shown() -> None:
    readings = {BF16: make_gradient_reading(), BASELINE: make_gradient_reading(gain=0.5)}
    findings = {
        gates_name(setup): Examined(setup=setup.key, reading=reading)
        for setup, reading in readings.items()
    }
    result = build_result("tried", run_of(GAINS), about_of(*GAINS), findings)
    assert numerics_lines(result)[0] == "numerics"
    assert printed(gate_table(result))[0] == f"gates of {BF16.key}"
    lines = {line.split()[1]: line for line in gate_lines(result)}
    assert set(lines) == {f"{BF16.key}:", f"{BASELINE.key}:"}
    assert "; fails gain: " in lines[f"{BASELINE.key}:"]


def test_a_sweep_ends_with_the_words_below_the_verdict_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = result_of(words=WORDS)
    monkeypatch.setattr("autotune.wiring.write_result", lambda store: result)
    session = cast(Session, SimpleNamespace(store=Store(None, create=True)))
    cli._finish(session, "decided", ["sweep"], json=False)
    out = capsys.readouterr().out
    assert out.startswith("CONFIRMED")
    assert out.endswith("\n".join(numerics_lines(result)) + "\n")
