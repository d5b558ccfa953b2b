"""The whole loop on scripted answers: phases, budget, failures, kills."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import EnvironmentFailedError
from autotune.events import BudgetCut, Event, PhaseStarted, ProbeFinished, SetupLeft
from autotune.outcome import OutcomeKind
from autotune.search import Store
from autotune.setup import Setup
from autotune.sweep import Plan, Sweep
from autotune.wiring.results import result_of
from tests.scripted import (
    SWEEP,
    Killed,
    Rule,
    ScriptedLauncher,
    Where,
    killer,
    make_plan,
    make_sweep,
    new_store,
)

BF16_GAIN = 0.25
WIDE = SWEEP.replace("zero_stage: 1\n  bucket", "zero_stage: [1, 2, 3]\n  bucket")


def noisy(gain: float = BF16_GAIN, noise: float = 0.01) -> Rule:
    """bf16 is faster by ``gain``; without noise in the search, whose order is random."""

    def rule(setup: Setup, where: Where) -> float:
        true = gain if setup.precision == "bf16" else 0.0
        if where.block is None:
            return true
        return true + random.Random(f"{setup.key} {where}").gauss(0.0, noise)

    return rule


def run(
    plan: Plan, rule: Rule, *listeners: Any, cold_seconds: float = 0.0
) -> tuple[dict[str, Any], ScriptedLauncher]:
    store = new_store(plan)
    launcher = ScriptedLauncher(rule, cold_seconds=cold_seconds, listeners=list(listeners))
    assert make_sweep(plan, store, launcher).run() == "decided"
    return result_of(store), launcher


def test_a_sweep_searches_races_confirms_and_claims_the_gain(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    events: list[Event] = []
    result, launcher = run(plan, noisy(), events.append)
    phases = [event.phase for event in events if isinstance(event, PhaseStarted)]
    assert phases == ["numerics", "search", "numerics", "race", "confirm"]
    assert result["verdict"] == "confirmed"
    assert "bf16" in result["winner"]
    assert result["interval"][0] > 1.01
    assert result["interval"][0] < 2.7182818**BF16_GAIN < result["interval"][1]
    assert result["launches"] == 6
    survey_search_gates = 3
    assert len(launcher.started) == survey_search_gates + result["race"]["blocks"] + 6
    assert result["spent"]["probes"] == len(result["measurements"])


def test_equal_setups_are_never_claimed_to_be_a_gain(tmp_path: Path) -> None:
    result, _ = run(make_plan(tmp_path), noisy(gain=0.0))
    assert result["verdict"] in ("keep-baseline", "inconclusive")


def test_a_search_that_finds_nothing_near_the_baseline_keeps_it_without_a_race(
    tmp_path: Path,
) -> None:
    plan = make_plan(tmp_path)

    def rule(setup: Setup, where: Where) -> float:
        return 0.0 if setup == plan.baseline else -0.5

    result, launcher = run(plan, rule)
    assert (result["verdict"], result["winner"]) == ("keep-baseline", plan.baseline.key)
    assert len(launcher.started) == 2  # for the survey and the search
    assert {request.ask for request in launcher.asked} == {"exposure"}


@pytest.mark.parametrize("kind", ["oom", "inert", "crash", "hang"])
def test_a_setup_that_begins_to_fail_in_the_race_leaves_and_the_others_go_on(
    tmp_path: Path, kind: OutcomeKind
) -> None:
    fast = noisy()

    def rule(setup: Setup, where: Where) -> float | OutcomeKind:
        late = where.phase == "race" and (where.block or 0) > 0
        fails = setup.precision == "bf16" and setup.grad_comm_dtype == "bf16"
        return kind if fails and late else fast(setup, where)

    events: list[Event] = []
    result, _ = run(make_plan(tmp_path), rule, events.append)
    left = {event.setup.key: event.reason for event in events if isinstance(event, SetupLeft)}
    (reason,) = [text for key, text in left.items() if "wire-bf16" in key and "z1.bf16" in key]
    assert reason.startswith(kind)
    assert result["verdict"] == "confirmed"
    assert "wire-fp32" in result["winner"]


def test_a_baseline_that_stops_working_ends_the_sweep_as_a_failed_environment(
    tmp_path: Path,
) -> None:
    plan = make_plan(tmp_path)

    def rule(setup: Setup, where: Where) -> float | OutcomeKind:
        fails = where.phase == "confirm" and setup == plan.baseline
        return "unsafe" if fails else noisy()(setup, where)

    with pytest.raises(EnvironmentFailedError, match="cannot be measured: unsafe"):
        run(plan, rule)


def test_every_kill_of_the_controller_resumes_to_the_uninterrupted_verdict(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    whole, _ = run(plan, noisy(noise=0.03))
    count = len(whole["measurements"])
    assert {item["phase"] for item in whole["measurements"]} == {"search", "race", "confirm"}
    names = ("verdict", "winner", "ratio", "interval", "launches", "equivalent")
    for after in range(1, count):
        store = new_store(plan)
        dying = ScriptedLauncher(noisy(noise=0.03), listeners=[killer(after)])
        with pytest.raises(Killed):
            make_sweep(plan, store, dying).run()
        before = store.probes()
        assert len(before) == after
        assert make_sweep(plan, store, ScriptedLauncher(noisy(noise=0.03))).run() == "decided"
        assert store.probes()[:after] == before
        resumed = result_of(store)
        assert {name: resumed[name] for name in names} == {name: whole[name] for name in names}
        searched = Counter(
            p.setup.key for p in store.probes() if p.phase == "search" and not p.baseline
        )
        assert set(searched.values()) == {1}


def again(store: Store) -> Counter[Setup]:
    """Second probes before the race."""
    probes = [probe for probe in store.probes() if probe.phase == "race" and probe.block is None]
    return Counter(probe.setup for probe in probes if not probe.baseline)


def test_too_many_alike_are_probed_once_more_before_eight_enter_the_race(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, WIDE)
    store, launcher = new_store(plan), ScriptedLauncher(noisy(gain=0.0))
    assert make_sweep(plan, store, launcher).run() == "decided"
    others = plan.space.valid().keys() - {plan.baseline}
    assert len(others) == 11
    assert again(store) == dict.fromkeys(others, 1)
    assert len(store.about["race"]["entrants"]) == 8
    assert result_of(store)["verdict"] in ("keep-baseline", "inconclusive")


def test_the_second_probe_counts_as_much_as_the_first(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, WIDE)
    lucky = next(setup for setup in plan.space.valid() if setup.zero_stage == 3)
    served: list[Setup] = []

    def rule(setup: Setup, where: Where) -> float:
        served.append(setup)
        first = served.count(setup) == 1
        return {True: 0.06, False: -0.1}[first] if setup == lucky else 0.001 * setup.zero_stage

    store = new_store(plan)
    make_sweep(plan, store, ScriptedLauncher(rule)).run()
    assert again(store)[lucky] == 1
    assert lucky.to_dict() not in store.about["race"]["entrants"]


def test_a_kill_between_search_and_race_repeats_no_second_probe(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, WIDE)
    for after in (16, 18, 22, 27):
        store = new_store(plan)
        dying = ScriptedLauncher(noisy(gain=0.0), listeners=[killer(after)])
        with pytest.raises(Killed):
            make_sweep(plan, store, dying).run()
        assert make_sweep(plan, store, ScriptedLauncher(noisy(gain=0.0))).run() == "decided"
        assert set(again(store).values()) == {1}
        assert len(again(store)) == 11


def test_ctrl_c_in_any_phase_stops_after_the_running_probe(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    for after in (2, 10, 25):
        store = new_store(plan)
        launcher = ScriptedLauncher(noisy(noise=0.03))
        sweep = make_sweep(plan, store, launcher)

        def listen(event: Event, sweep: Sweep = sweep, after: int = after) -> None:
            if isinstance(event, ProbeFinished) and event.probe.number == after - 1:
                sweep.interrupt()

        launcher.listeners.append(listen)
        assert sweep.run() == "interrupted"
        assert len(store.probes()) == after
        assert result_of(store)["verdict"] == "unconfirmed"


@pytest.mark.parametrize("minutes", [1, 2, 3, 5, 10])
def test_the_budget_of_minutes_covers_all_phases_and_what_is_cut_is_said(
    tmp_path: Path, minutes: int
) -> None:
    plan = make_plan(tmp_path, WIDE.replace("minutes: 60", f"minutes: {minutes}"))
    events: list[Event] = []
    result, launcher = run(plan, noisy(noise=0.05), events.append)
    assert launcher.clock() <= minutes * 60 + 15
    cuts = [event.text for event in events if isinstance(event, BudgetCut)]
    assert result["cuts"] == cuts
    if minutes == 1:
        assert any(cut.startswith("confirm: skipped") for cut in cuts)
        assert result["verdict"] == "inconclusive"
    if minutes >= 3:
        assert result["verdict"] == "confirmed"


@pytest.mark.parametrize(
    ("probes", "verdict"),
    [(6, "unconfirmed"), (20, "inconclusive"), (40, "confirmed"), (80, "confirmed")],
)
def test_the_budget_of_probes_is_never_exceeded(tmp_path: Path, probes: int, verdict: str) -> None:
    plan = make_plan(tmp_path, WIDE.replace("minutes: 60", f"probes: {probes}"))
    result, _ = run(plan, noisy(noise=0.05))
    assert result["spent"]["probes"] <= probes
    assert result["verdict"] == verdict


def test_a_later_confirmation_takes_fresh_launches_and_ignores_the_first(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    store = new_store(plan)
    assert make_sweep(plan, store, ScriptedLauncher(noisy())).run() == "decided"
    assert result_of(store)["verdict"] == "confirmed"
    winner = next(p.setup for p in store.probes() if p.setup.key == result_of(store)["winner"])
    slow = ScriptedLauncher(noisy(gain=-0.1))
    assert make_sweep(plan, store, slow).confirm_again([winner], None) == "decided"
    again = result_of(store)
    assert again["verdict"] == "keep-baseline"
    assert again["launches"] == len(slow.started) == 6


def test_a_cold_first_launch_does_not_cost_the_sweep_its_race(tmp_path: Path) -> None:
    """Compilation and cold caches make it slow once; the budget holds warm launches in plenty."""
    plan = make_plan(tmp_path, WIDE.replace("minutes: 60", "minutes: 6"))
    result, launcher = run(plan, noisy(), cold_seconds=60.0)
    assert result["cuts"] == []
    assert result["race"]["blocks"] >= 3
    assert result["verdict"] == "confirmed"
    assert launcher.clock() <= 6 * 60
