"""The gates in a sweep: what does not train enters no race."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.events import Event, Judged, ReadingStarted
from autotune.numerics.findings import Examined, Missing
from autotune.numerics.names import gates_name
from autotune.outcome import Outcome, OutcomeKind
from autotune.readings import Reading
from autotune.request import ReadingRequest
from autotune.search import Store
from autotune.setup import Setup
from autotune.sweep import Plan
from autotune.wiring.results import result_of
from tests.readings import READINGS, make_gradient_reading
from tests.scripted import (
    SWEEP,
    Killed,
    ScriptedLauncher,
    Where,
    die,
    make_plan,
    make_sweep,
    new_store,
    nth,
)

Answer = Callable[[ReadingRequest], "Reading | Outcome"]


def bf16_is_faster(setup: Setup, where: Where) -> float:
    return 0.2 * (setup.precision == "bf16") + 0.02 * (setup.grad_comm_dtype == "bf16")


def sound(setup: Setup) -> Reading:
    """fp32 rounds nothing."""
    if setup.precision == setup.grad_comm_dtype == "fp32":
        return make_gradient_reading(relative_error=1e-7, worst_tensor_error=1e-6, gain=1.0)
    return make_gradient_reading()


def refusing(*names: str, **faults: Any) -> Answer:
    """Setups whose key has any of the names apply a gradient with these faults."""

    def answer(request: ReadingRequest) -> Reading:
        if request.ask != "gradient":
            return READINGS[request.ask]
        if any(name in request.setup.key for name in names):
            return make_gradient_reading(**(faults or {"gain": 1.5e-5}))
        return sound(request.setup)

    return answer


SOUND = refusing()


def swept(plan: Plan, readings: Answer = SOUND, **more: Any) -> tuple[Store, ScriptedLauncher]:
    store = new_store(plan)
    launcher = ScriptedLauncher(bf16_is_faster, readings=readings, **more)
    assert make_sweep(plan, store, launcher).run() == "decided"
    return store, launcher


def examined(launcher: ScriptedLauncher) -> list[str]:
    return [request.setup.key for request in launcher.asked if request.ask == "gradient"]


def reasons(store: Store) -> dict[str, str]:
    return {item["key"]: item["reason"] for item in store.about["race"]["dropped"]}


def test_the_baseline_and_whoever_would_race_are_examined_once_and_nobody_else(
    tmp_path: Path,
) -> None:
    plan = make_plan(tmp_path)
    store, launcher = swept(plan)
    assert examined(launcher)[0] == plan.baseline.key
    entrants = {Setup.from_dict(item).key for item in store.about["race"]["entrants"]}
    assert sorted(examined(launcher)) == sorted({plan.baseline.key, *entrants})
    dropped = {probe.setup.key for probe in store.probes()} - entrants - {plan.baseline.key}
    assert dropped  # fp32 with bf16 on the wire is far behind
    assert all(request.steps == 50 for request in launcher.asked if request.ask == "gradient")


def test_a_leader_that_does_not_train_is_unsafe_and_the_next_best_wins(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    assert "bf16.wire-bf16" in result_of(swept(plan)[0])["winner"]
    store, _ = swept(plan, refusing("bf16.wire-bf16"))
    result = result_of(store)
    assert result["verdict"] == "confirmed"
    assert "bf16.wire-fp32" in result["winner"]
    (key,) = [key for key in reasons(store) if "bf16.wire-bf16" in key]
    assert reasons(store)[key].startswith(
        "unsafe: gain: the applied gradient is 1.5e-05 times that of fp32, not within 1 +- 0.01"
    )
    row = next(row for row in result["setups"] if row["key"] == key)
    assert row["outcome"] == "unsafe"
    late = [probe for probe in store.probes() if probe.phase != "search"]
    assert key not in {probe.setup.key for probe in late}


def test_for_a_refused_leader_one_that_was_too_far_behind_comes_in(tmp_path: Path) -> None:
    """fp32 with bf16 on the wire is 20 % behind; with both bf16 setups out it leads."""
    plan = make_plan(tmp_path)
    store, launcher = swept(plan, refusing("bf16.wire"))
    assert any("fp32.wire-bf16" in key for key in examined(launcher))
    result = result_of(store)
    assert result["verdict"] == "confirmed"
    assert "fp32.wire-bf16" in result["winner"]


def test_where_nothing_trains_the_baseline_is_kept(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    store, _ = swept(plan, refusing("bf16"))
    result = result_of(store)
    assert (result["verdict"], result["winner"]) == ("keep-baseline", plan.baseline.key)
    assert [row["outcome"] for row in result["setups"]].count("unsafe") == 3


def test_a_baseline_that_fails_is_told_of_and_stays(tmp_path: Path) -> None:
    told: list[Judged] = []

    def listen(event: Event) -> None:
        if isinstance(event, Judged):
            told.append(event)

    plan = make_plan(tmp_path)
    store, _ = swept(plan, refusing(plan.baseline.key, gain=0.5), listeners=[listen])
    (event,) = [item for item in told if item.text.startswith(f"{plan.baseline.key}: unsafe")]
    assert event.refused is None
    result = result_of(store)
    assert result["verdict"] == "confirmed"
    assert "gate" in {item["kind"] for item in result["warnings"]}


def test_whoever_is_refused_is_named_in_the_event(tmp_path: Path) -> None:
    refused: list[Setup] = []

    def listen(event: Event) -> None:
        if isinstance(event, Judged) and event.refused:
            refused.append(event.refused)

    swept(make_plan(tmp_path), refusing("bf16.wire-bf16"), listeners=[listen])
    assert [setup.key for setup in refused] == ["deepspeed.z1.bf16.wire-bf16.mb2x2.bucket25000000"]


@pytest.mark.parametrize(("limit", "wins"), [(0.05, True), (0.005, False)])
def test_a_limit_of_the_user_s_own_decides(tmp_path: Path, limit: float, wins: bool) -> None:
    """By the default of 0.1 an error of 1 % passes with bf16."""
    text = SWEEP + f"gates: {{relative_error: {limit}}}\n"
    store, _ = swept(make_plan(tmp_path, text), refusing("bf16.wire-bf16", relative_error=0.01))
    result = result_of(store)
    assert ("bf16.wire-bf16" in result["winner"]) is wins
    assert "limits" in {item["kind"] for item in result["warnings"]}


def test_other_limits_judge_what_was_read_before(tmp_path: Path) -> None:
    """A run that stopped at the gates goes on with a limit that refuses what had passed."""
    plan = make_plan(tmp_path)
    store, launcher = new_store(plan), ScriptedLauncher(bf16_is_faster, readings=SOUND)
    launcher.listeners.append(nth(3, die, Judged))  # communication, the baseline, the leader
    with pytest.raises(Killed):
        make_sweep(plan, store, launcher).run()
    assert len(examined(launcher)) == 2
    strict = make_plan(tmp_path, SWEEP + "gates: {cosine: 1e-6}\n")
    store.describe({"gates": dict(strict.spec.gates)})
    rest = ScriptedLauncher(bf16_is_faster, readings=SOUND)
    assert make_sweep(strict, store, rest).run() == "decided"
    assert plan.baseline.key not in examined(rest)
    assert all(reason.startswith("unsafe: cosine: ") for reason in reasons(store).values())
    assert result_of(store)["verdict"] == "keep-baseline"


def test_a_setup_that_cannot_be_examined_may_race_and_the_result_says_so(tmp_path: Path) -> None:
    def answer(request: ReadingRequest) -> Reading | Outcome:
        if request.ask == "gradient" and "bf16.wire-bf16" in request.setup.key:
            return Outcome(kind="oom", reason="too big")
        return SOUND(request)

    plan = make_plan(tmp_path)
    store, launcher = swept(plan, answer)
    result = result_of(store)
    assert "bf16.wire-bf16" in result["winner"]
    assert examined(launcher).count(result["winner"]) == 1
    winner = next(probe.setup for probe in store.probes() if probe.setup.key == result["winner"])
    assert store.findings()[gates_name(winner)] == Missing(reason="oom: too big")
    (warning,) = [item for item in result["warnings"] if item["kind"] == "ungated"]
    assert "oom: too big" in warning["text"]


def test_what_the_budget_does_not_allow_to_examine_does_not_race(tmp_path: Path) -> None:
    """Only the baseline and the leader are examined at any price."""

    plan = make_plan(tmp_path, SWEEP.replace("minutes: 60", "minutes: 4"))
    launcher = ScriptedLauncher(bf16_is_faster)

    def answer(request: ReadingRequest) -> Reading:
        if request.ask == "gradient":
            launcher.seconds += 40
        return READINGS[request.ask] if request.ask != "gradient" else sound(request.setup)

    launcher.readings = answer
    store = new_store(plan)
    assert make_sweep(plan, store, launcher).run() == "decided"
    assert len(examined(launcher)) == 2
    assert examined(launcher)[0] == plan.baseline.key
    assert "bf16.wire-bf16" in examined(launcher)[1]
    assert store.about["cuts"][0] == "gates: 1 of 2 entrants were not examined"
    assert "no budget to examine it at the gates" in reasons(store).values()


def gate_events(plan: Plan) -> tuple[int, int]:
    """Positions of the first and the last event at the gates in a whole sweep."""
    seen: list[Event] = []
    swept(plan, refusing("bf16.wire-bf16"), listeners=[seen.append])
    places = [
        index
        for index, event in enumerate(seen, 1)
        if isinstance(event, ReadingStarted) and event.ask == "gradient"
    ]
    return places[0] - 3, places[-1] + 4


def test_a_controller_that_is_killed_at_the_gates_goes_on_where_it_stopped(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    answer = refusing("bf16.wire-bf16")
    store, launcher = swept(plan, answer)
    whole, number = result_of(store), len(examined(launcher))
    first, last = gate_events(plan)
    for position in range(first, last):
        store = new_store(plan)
        dying = ScriptedLauncher(bf16_is_faster, readings=answer, listeners=[nth(position, die)])
        with pytest.raises(Killed):
            make_sweep(plan, store, dying).run()
        known = sum(isinstance(item, Examined) for item in store.findings().values())
        rest = ScriptedLauncher(bf16_is_faster, readings=answer)
        assert make_sweep(plan, store, rest).run() == "decided"
        assert known + len(examined(rest)) == number
        result = result_of(store)
        for part in ("verdict", "winner", "ratio", "interval"):
            assert result[part] == whole[part]


def test_ctrl_c_at_the_gates_stops_after_the_setup_under_way(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    store, launcher = new_store(plan), ScriptedLauncher(bf16_is_faster, readings=SOUND)
    sweep = make_sweep(plan, store, launcher)

    def listen(event: Event) -> None:
        if isinstance(event, ReadingStarted) and event.ask == "gradient":
            sweep.interrupt()

    launcher.listeners.append(listen)
    assert sweep.run() == "interrupted"
    assert len(examined(launcher)) == 1
    assert "race" not in store.about
    rest = ScriptedLauncher(bf16_is_faster, readings=SOUND)
    assert make_sweep(plan, store, rest).run() == "decided"
    assert examined(launcher)[0] not in examined(rest)


def test_a_setup_of_another_learning_rate_is_read_with_the_real_one(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, SWEEP + "target: {learning_rate: 0.002}\n")
    _, launcher = swept(plan)
    assert {request.learning_rate for request in launcher.asked} == {0.002}
    usual = replace(plan, spec=replace(plan.spec, target=None))
    assert usual.learning_rate != 0.002


def dear(launcher: ScriptedLauncher, answer: Answer, seconds: float) -> Answer:
    """The same answers, each after so many seconds at the gates."""

    def slow(request: ReadingRequest) -> Reading | Outcome:
        launcher.seconds += seconds * (request.ask == "gradient")
        return answer(request)

    return slow


def test_a_leader_that_is_refused_stays_out_when_the_budget_ends_there(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, SWEEP.replace("minutes: 60", "minutes: 4"))
    launcher = ScriptedLauncher(bf16_is_faster)
    launcher.readings = dear(launcher, refusing("bf16.wire-bf16"), 40)
    store = new_store(plan)
    assert make_sweep(plan, store, launcher).run() == "decided"
    assert len(examined(launcher)) == 2
    assert "bf16.wire-bf16" in examined(launcher)[1]
    assert store.about["race"]["entrants"] == []
    assert any(reason.startswith("unsafe: gain") for reason in reasons(store).values())
    result = result_of(store)
    assert (result["verdict"], result["winner"]) == ("inconclusive", plan.baseline.key)
    assert "confirm: skipped, the leader was not examined at the gates" in result["cuts"]
    (next_best,) = store.about["confirmations"][0]["setups"]
    assert (next_best["precision"], next_best["grad_comm_dtype"]) == ("bf16", "fp32")
    later = ScriptedLauncher(bf16_is_faster, readings=SOUND)
    rich = make_plan(tmp_path)
    make_sweep(rich, store, later).confirm_again([Setup.from_dict(next_best)], 6)
    assert examined(later) == [Setup.from_dict(next_best).key]
    assert result_of(store)["verdict"] == "confirmed"


def test_readings_that_fail_are_paid_for_like_others(tmp_path: Path) -> None:
    """Each hangs until its deadline; only the baseline's and the leader's are at any price."""
    plan = make_plan(tmp_path, SWEEP.replace("minutes: 60", "minutes: 10"))
    launcher = ScriptedLauncher(bf16_is_faster)

    def hangs(request: ReadingRequest) -> Reading | Outcome:
        hung = Outcome(kind="hang", reason="no answer")
        return hung if request.ask == "gradient" else READINGS[request.ask]

    launcher.readings = dear(launcher, hangs, 300)
    store = new_store(plan)
    assert make_sweep(plan, store, launcher).run() == "decided"
    assert len(examined(launcher)) == 2
    assert store.about["cuts"][0] == "gates: 1 of 2 entrants were not examined"


def test_launches_that_fail_between_phases_are_not_taken_together(tmp_path: Path) -> None:
    """Two in a row end a sweep; a launch that served the gates is between these."""
    plan = make_plan(tmp_path)
    _, launcher = swept(plan)
    gates = 2  # after those of the survey and of the search
    broken = {gates, gates + 2}
    again = ScriptedLauncher(bf16_is_faster, readings=SOUND)
    again.broken = lambda number, alone: number in broken
    store = new_store(plan)
    assert make_sweep(plan, store, again).run() == "decided"
    assert len(again.started) == len(launcher.started) + 2
    assert result_of(store)["verdict"] == "confirmed"


def test_what_a_refused_leader_had_stopped_early_is_probed_again_and_may_win(
    tmp_path: Path,
) -> None:
    """A fast setup that does not train must not end the probes of those that do."""
    seen: set[Setup] = set()

    def rule(setup: Setup, where: Where) -> float | OutcomeKind:
        first = setup not in seen
        seen.add(setup)
        if first and setup.precision == "bf16" and setup.grad_comm_dtype == "fp32":
            return "pruned"
        return 0.5 if "bf16.wire-bf16" in setup.key else bf16_is_faster(setup, where)

    plan = make_plan(tmp_path)
    store = new_store(plan)
    launcher = ScriptedLauncher(rule, readings=refusing("bf16.wire-bf16"))
    assert make_sweep(plan, store, launcher).run() == "decided"
    result = result_of(store)
    assert result["verdict"] == "confirmed"
    assert "bf16.wire-fp32" in result["winner"]
    again = [probe for probe in store.probes() if probe.phase == "race" and probe.block is None]
    assert [probe.setup.key for probe in again if not probe.baseline] == [result["winner"]]


def test_what_a_sound_leader_had_stopped_early_stays_out(tmp_path: Path) -> None:
    def rule(setup: Setup, where: Where) -> float | OutcomeKind:
        return "pruned" if "fp32.wire-bf16" in setup.key else bf16_is_faster(setup, where)

    plan = make_plan(tmp_path)
    store, launcher = new_store(plan), ScriptedLauncher(rule, readings=SOUND)
    assert make_sweep(plan, store, launcher).run() == "decided"
    assert sum(probe.outcome.kind == "pruned" for probe in store.probes()) == 1
