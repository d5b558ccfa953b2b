"""Progress, plans and results for people, on a terminal and elsewhere."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from autotune.console import (
    LiveReporter,
    Pace,
    Reporter,
    describe_probe,
    event_line,
    failure_lines,
    format_bytes,
    format_seconds,
    left_lines,
    make_reporter,
    noise_lines,
    plan_lines,
    result_table,
    spent_lines,
    verdict_lines,
    warning_lines,
)
from autotune.events import (
    BlockStarted,
    BudgetCut,
    Event,
    LaunchEnded,
    LaunchReady,
    LaunchStarting,
    PhaseStarted,
    ProbeFinished,
    ProbeStarted,
    SetupLeft,
    SweepPlanned,
)
from autotune.report import build_result
from tests.build import make_measurement, make_probe, make_setup
from tests.records import (
    BASELINE,
    BF16,
    BF16_FP32_WIRE,
    FSDP,
    GAIN,
    NO_GAIN,
    STAGE3,
    UNCLEAR,
    about_of,
    run_of,
    searched,
)

EVENTS: tuple[Event, ...] = (
    SweepPlanned(setups=2, measured=0, probes=10, minutes=3),
    PhaseStarted(phase="search", setups=2, launches=None),
    LaunchStarting(launch=0, ranks=2),
    LaunchReady(launch=0, seconds=4.2),
    ProbeStarted(number=0, setup=make_setup(), baseline=True),
    ProbeFinished(probe=make_probe(0, baseline=True), ratio=None),
    ProbeFinished(probe=make_probe(1, BF16, backward=0.05), ratio=2.0),
    ProbeFinished(probe=make_probe(2, STAGE3, kind="oom"), ratio=None),
    LaunchEnded(launch=0, reason="exhausted"),
    BudgetCut(text="search: 3 of 5 setups were not tried"),
)
RACE: tuple[Event, ...] = (
    PhaseStarted(phase="race", setups=2, launches=8),
    BlockStarted(phase="race", number=0, entries=3),
    ProbeFinished(
        probe=make_probe(3, FSDP, backward=0.08, phase="race", block=0, launch=1), ratio=1.25
    ),
    SetupLeft(phase="race", setup=BF16, reason="behind by 5.1%"),
)


def shown(*events: Event, terminal: bool) -> tuple[Reporter, str]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=150, height=40, highlight=False)
    with make_reporter(console) as reporter:
        for event in events:
            reporter(event)
    return reporter, file.getvalue()


def result_of(gains: Mapping[Any, Any], **changes: Any) -> dict[str, Any]:
    return build_result("tried", run_of(gains), about_of(*gains, **changes), run="runs/tried")


def test_elsewhere_every_event_that_matters_is_one_plain_line() -> None:
    reporter, text = shown(*EVENTS, terminal=False)
    assert not isinstance(reporter, LiveReporter)
    lines = text.splitlines()
    assert lines[:4] == [
        "2 setups, 0 already measured; budget 3 minutes or 10 probes",
        "search: 2 setups",
        "launch 0: starting 2 ranks",
        "launch 0: warm after 4.2 s",
    ]
    assert [line[:5] for line in lines[4:7]] == ["[  0]", "[  1]", "[  2]"]
    assert lines[-2:] == [
        "launch 0: ended (exhausted)",
        "budget: search: 3 of 5 setups were not tried",
    ]
    assert "\x1b" not in text


def test_a_second_probe_before_the_race_is_said_to_be_one() -> None:
    event = PhaseStarted(phase="race", setups=12, launches=1, qualifying=True)
    _, text = shown(event, terminal=False)
    assert text == "race: 12 setups near the leader, too many; each is probed once more\n"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (RACE[0], "race: 2 setups and the baseline, at most 8 launches"),
        (RACE[1], "race: block 0, 3 probes"),
        (RACE[3], f"race: {BF16.key} is out, behind by 5.1%"),
        (
            PhaseStarted(phase="confirm", setups=1, launches=12),
            "confirm: 1 setup and the baseline twice, at most 12 launches",
        ),
    ],
)
def test_phases_blocks_and_setups_that_leave_have_lines(event: Event, line: str) -> None:
    assert event_line(event) == line


def test_a_long_line_is_not_folded_where_there_is_no_terminal() -> None:
    file = io.StringIO()
    Reporter(Console(file=file, width=40))(EVENTS[6])
    assert len(file.getvalue().splitlines()) == 1


def test_a_terminal_shows_the_best_so_far_the_progress_and_what_failed() -> None:
    reporter, text = shown(*EVENTS, terminal=True)
    assert isinstance(reporter, LiveReporter)
    assert "best so far" in text
    assert BF16.key in text
    assert "2.00x" in text
    assert "search: 3 probes in" in text
    assert "left of the search" in text
    assert "oom: because" in text
    assert "budget: search: 3 of 5 setups were not tried" in text


def test_a_terminal_names_the_phase_and_shows_the_best_of_that_phase_alone() -> None:
    text = shown(*EVENTS, *RACE, terminal=True)[1]
    last = text[text.rindex("best so far") :]
    assert "race: 4 probes in" in last
    assert FSDP.key in last
    assert BF16.key not in last  # 2.00x was the search's, which is optimistic
    assert f"race: {BF16.key} is out" in text


def test_the_search_ends_at_most_when_all_setups_were_probed_or_the_budget_ends() -> None:
    pace = Pace(started=0.0)
    assert pace.seconds_left(1.0) is None
    pace.take(SweepPlanned(setups=8, measured=0, probes=None, minutes=None), 0.0)
    pace.take(EVENTS[1], 0.0)
    for now in (2.0, 4.0):
        pace.take(EVENTS[5], now)
    assert pace.seconds_left(4.0) == pytest.approx(8 * 1.25 * 2 - 4)
    pace.take(SweepPlanned(setups=8, measured=0, probes=None, minutes=0.2), 4.0)
    assert pace.seconds_left(4.0) == pytest.approx(8.0)
    pace.take(SweepPlanned(setups=8, measured=0, probes=3, minutes=0.2), 4.0)
    assert pace.seconds_left(4.0) == pytest.approx(2.0)


def test_a_race_ends_at_most_with_its_last_block_at_the_pace_of_those_before() -> None:
    pace = Pace(started=0.0)
    pace.take(RACE[0], 100.0)
    pace.take(BlockStarted(phase="race", number=2, entries=3), 101.0)  # resumed after two
    assert pace.seconds_left(105.0) is None
    pace.take(BlockStarted(phase="race", number=3, entries=3), 110.0)
    assert pace.seconds_left(112.0) == pytest.approx(5 * 10 - 2)


def test_a_line_on_a_probe_says_what_was_measured_at_the_median_step() -> None:
    probe = make_probe(1, BF16, backward=0.05)
    assert describe_probe(probe, 2.0) == (
        f"[  1] {BF16.key}  backward 50.0 ms  20,000 tok/s  2.00x baseline  wire fp32 4 kB"
    )
    stalled = make_probe(1, BF16, measurement=make_measurement(0.05, slowest=5.0))
    assert "backward 50.0 ms  20,000 tok/s  2.00x" in describe_probe(stalled, 2.0)


def test_a_line_on_a_probe_says_how_it_failed_or_what_stopping_it_saved() -> None:
    assert describe_probe(searched()[2], None) == f"[  2] {FSDP.key}  oom: because"
    assert describe_probe(searched()[3], None) == (
        f"[  3] {STAGE3.key}  pruned: because (1500.0 ms saved)"
    )


def test_the_baseline_under_its_second_label_is_told_from_the_first() -> None:
    again = make_probe(4, BASELINE, baseline=True, control=True, phase="confirm", block=0)
    assert "  baseline again (A/A)  " in describe_probe(again, None)


def test_a_confirmed_verdict_has_its_interval_and_the_optimistic_estimate_beside_it() -> None:
    gains = {BF16: GAIN, BF16_FP32_WIRE: [ratio - 0.03 for ratio in GAIN]}
    assert verdict_lines(result_of(gains)) == [
        f"CONFIRMED  {BF16.key}  1.31x the backward throughput of the baseline "
        "(97.5 % interval 1.29x to 1.33x, 6 launches), 1.15x end-to-end",
        f"baseline     {BASELINE.key}",
        f"also         {BF16_FP32_WIRE.key}  1.28x (1.26x to 1.30x), 1.14x end-to-end",
        "screening    1.43x (optimistic: the best of many single noisy probes)",
        "noise floor  1.1 %",
    ]


def test_setups_that_cannot_be_told_apart_are_listed_and_the_estimate_names_its_setup() -> None:
    lines = verdict_lines(result_of({BF16: GAIN, BF16_FP32_WIRE: GAIN}))
    assert lines[0].startswith(f"CONFIRMED  {BF16_FP32_WIRE.key}")  # fp32 on the wire is safer
    assert f"cannot be told apart: {BF16.key}, {BF16_FP32_WIRE.key}" in lines
    assert any(line.startswith(f"screening    1.43x of {BF16.key} (optimistic") for line in lines)


def test_a_kept_baseline_is_said_plainly_with_the_best_challenger() -> None:
    lines = verdict_lines(result_of({BF16: NO_GAIN}))
    assert lines[0].startswith(f"KEEP-BASELINE  no setup is better than yours, {BASELINE.key}: ")
    assert lines[1] == (
        f"challenger   {BF16.key}  0.991x the backward throughput of the baseline "
        "(95 % interval 0.980x to 1.002x, 6 launches), 0.995x end-to-end"
    )


def test_a_kept_baseline_without_a_challenger_claims_nothing() -> None:
    lines = verdict_lines(build_result("tried", searched(), about_of()))
    assert lines[0].startswith("KEEP-BASELINE  no setup is better than yours")
    assert not any("interval" in line for line in lines)


def test_an_inconclusive_verdict_says_why_and_shows_the_leading_setup() -> None:
    lines = verdict_lines(result_of({BF16: UNCLEAR}))
    assert lines[0] == "INCONCLUSIVE  the interval contains 1 + margin (1.01)"
    assert lines[1].startswith(f"leading      {BF16.key}  1.016x the backward throughput")
    assert "95 % interval 0.975x to 1.059x, 6 launches" in lines[1]


def test_an_unconfirmed_winner_has_a_ratio_and_no_interval() -> None:
    about = about_of()
    del about["confirmations"]
    lines = verdict_lines(build_result("tried", searched(), about))
    assert lines[0] == (
        f"UNCONFIRMED  {BF16.key}  1.43x the backward throughput of the baseline, 1.25x end-to-end"
    )
    nothing = build_result("tried", [make_probe(0, BF16)], about)
    assert verdict_lines(nothing) == ["UNCONFIRMED  nothing could be measured"]
    alone = build_result("tried", [make_probe(0, BASELINE, baseline=True)], about)
    assert verdict_lines(alone) == [f"UNCONFIRMED  no setup beat the baseline {BASELINE.key}"]


def test_a_replay_is_not_taken_for_a_measurement() -> None:
    lines = verdict_lines(result_of({BF16: GAIN}, replay=True))
    assert lines[0] == "REPLAY  of recorded probes; nothing was measured for it"


def test_who_failed_and_who_left_is_listed_with_the_reason() -> None:
    result = result_of({BF16: GAIN})
    assert failure_lines(result) == [f"oom  {FSDP.key}: because", f"pruned  {STAGE3.key}: because"]
    (line,) = left_lines(result)
    assert line.startswith(f"race  {BF16_FP32_WIRE.key}: behind {BF16.key} by 5.1%")


def test_a_warning_is_one_line_with_its_advice() -> None:
    cut = "search: 3 of 5 setups were not tried"
    assert warning_lines(result_of({BF16: GAIN}, cuts=[cut]))[0] == (
        f"warning: The budget did not allow everything. {cut}. Raise budget.minutes from 3 to 6 in "
        "a sweep of another name."
    )


def test_the_table_says_how_far_each_setup_came() -> None:
    file = io.StringIO()
    gains = {BF16: GAIN, BF16_FP32_WIRE: [ratio - 0.03 for ratio in GAIN]}
    Console(file=file, width=200).print(result_table(result_of(gains)))
    rows = {line.split()[0]: line.split()[1] for line in file.getvalue().splitlines() if line}
    assert rows[BF16.key] == "winner"
    assert rows[BF16_FP32_WIRE.key] == "candidate"
    assert rows[BASELINE.key] == "baseline"
    assert rows[FSDP.key] == "oom"


PHASES = {
    "search": {"launches": [1, 1], "probes": [7, 7], "minutes": [0.4, 0.66]},
    "race": {"launches": [3, 8], "probes": [9, 40], "minutes": [0.5, 2.25]},
}


def test_what_was_spent_stands_beside_what_was_planned() -> None:
    planned = {"setups": 5, "probes": None, "minutes": 3, "phases": PHASES}
    assert spent_lines(result_of({BF16: GAIN}, planned=planned)) == [
        "search    1 launch (planned 1), 6 probes (planned 7), 0.5 minutes (planned 0.4 to 0.7)",
        "race      3 launches (planned 3 to 8), 9 probes (planned 9 to 40), "
        "0.5 minutes (planned 0.5 to 2.2)",
        "confirm   6 launches, 24 probes, 1.0 minutes",
        "in all    10 launches, 33 probes, 2.0 minutes; budget 3 minutes",
        "pruning   saved 1.5 s",
    ]


def test_what_a_run_did_not_keep_of_its_costs_is_not_made_up() -> None:
    assert spent_lines(result_of({BF16: GAIN}, spent={})) == ["pruning   saved 1.5 s"]


def plan(**planned: Any) -> dict[str, Any]:
    return {
        "name": "tried",
        "ranks": 2,
        "device": "cpu",
        "axes": {"precision": ["fp32", "bf16"]},
        "setups": [BF16.key],
        "baseline": make_setup().key,
        "removed": [{"restriction": "no-fp32", "count": 1, "reason": "why"}],
        "closed": [],
        "scales": {},
        "planned": {"setups": 1, "probes": None, "minutes": 3, **planned},
    }


def test_a_plan_says_what_is_tried_and_what_was_removed_and_why() -> None:
    lines = plan_lines(plan())
    assert "2 combinations, 1 removed:" in lines
    assert "      1  no-fp32: why" in lines
    assert f"  {BF16.key}" in lines
    assert lines[-2:] == [f"baseline: {make_setup().key}", "budget: 3 minutes"]


def test_a_plan_with_known_costs_shows_ranges_for_each_phase_and_where_they_are_from() -> None:
    lines = plan_lines(plan(phases=PHASES, **{"from": "one calibrating launch"}))
    assert lines[-5:] == [
        "expected cost, from one calibrating launch:",
        "  search    1 launch, 7 probes, 0.4 to 0.7 minutes",
        "  race      3 to 8 launches, 9 to 40 probes, 0.5 to 2.2 minutes",
        "  in all    4 to 9 launches, 16 to 47 probes, 0.9 to 2.9 minutes",
        "budget: 3 minutes",
    ]


def test_the_noise_of_a_machine_says_which_gains_how_many_launches_confirm() -> None:
    noise = {
        "baseline": BASELINE.key,
        "floor": 0.0412,
        "between_launches": 0.12,
        "launch_seconds": 9.0,
        "probe_seconds": 2.5,
        "margin": 0.01,
        "resolutions": [
            {"launches": 6, "ratio": 1.081, "minutes": 1.65},
            {"launches": 30, "ratio": 1.0349, "minutes": 8.25},
        ],
    }
    lines = noise_lines(noise)
    assert lines == [
        f"baseline          {BASELINE.key}",
        "noise floor       4.1 % (two probes of one setup in one launch)",
        "between launches  12.0 % (cancels, setups share a launch)",
        "costs             9.0 s a launch, 2.5 s a probe",
        "one candidate against the baseline, margin 1 %:",
        "    6 launches, 1.6 minutes: gains from 1.08x are confirmed in 9 of 10 sweeps",
        "   30 launches, 8.2 minutes: gains from 1.035x are confirmed in 9 of 10 sweeps",
    ]
    assert noise_lines({**noise, "between_launches": None}) == [*lines[:2], *lines[3:]]


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.0831, "83.1 ms"), (9.99, "9990.0 ms"), (12.5, "12.5 s")]
)
def test_seconds_are_milliseconds_while_they_are_small(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(None, "-"), (0, "0 B"), (10_486_272, "10.5 MB"), (2.5e13, "25 TB")]
)
def test_bytes_are_decimal(size: float | None, text: str) -> None:
    assert format_bytes(size) == text
