"""Readings before the search: which are taken, and what they take out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.events import (
    Event,
    Judged,
    LaunchEnded,
    LaunchStarting,
    PhaseStarted,
    ProbeFinished,
    ReadingStarted,
)
from autotune.launch.replay import Recorded, ReplayLauncher
from autotune.numerics.findings import Communication, Missing
from autotune.outcome import Outcome
from autotune.readings import Reading
from autotune.request import ReadingRequest
from autotune.search import Store
from autotune.setup import Setup
from autotune.sweep import Plan, Sweep
from autotune.sweep.wants import readings_of, wants
from autotune.wiring.results import result_of
from tests.readings import READINGS, make_exposure, make_sample
from tests.scripted import (
    SWEEP,
    Killed,
    ScriptedLauncher,
    Where,
    describe,
    die,
    make_plan,
    make_sweep,
    new_store,
    nth,
)

STAGES = SWEEP.replace("zero_stage: 1\n  bucket", "zero_stage: [1, 2]\n  bucket")
Answer = Callable[[ReadingRequest], "Reading | Outcome"]


def bf16_is_faster(setup: Setup, where: Where) -> float:
    return 0.2 * (setup.precision == "bf16") + 0.1 * (setup.grad_comm_dtype == "bf16")


def exposing(share: float) -> Answer:
    def answer(request: ReadingRequest) -> Reading:
        return make_exposure(share) if request.ask == "exposure" else READINGS[request.ask]

    return answer


def swept(plan: Plan, readings: Answer | None = None, **launcher: Any) -> tuple[Store, Any]:
    store = new_store(plan)
    scripted = ScriptedLauncher(bf16_is_faster, **launcher)
    if readings is not None:
        scripted.readings = readings
    assert make_sweep(plan, store, scripted).run() == "decided"
    return store, scripted


def asked(launcher: ScriptedLauncher) -> Counter[str]:
    return Counter(request.ask for request in launcher.asked if request.ask != "gradient")


def wires(store: Store) -> set[str]:
    return {probe.setup.grad_comm_dtype for probe in store.probes()}


def test_each_way_of_reducing_with_a_choice_of_wire_is_measured_once(tmp_path: Path) -> None:
    text = SWEEP.replace("backend: deepspeed\n  p", "backend: [deepspeed, fsdp]\n  p")
    text = text.replace("zero_stage: 1\n  bucket", "zero_stage: [1, 2, 3]\n  bucket")
    found = wants(make_plan(tmp_path, text))
    assert [want.ask for want in found] == ["exposure"] * 3
    assert {(want.setup.backend, want.setup.zero_stage) for want in found} == {
        *(("deepspeed", 1), ("deepspeed", 2), ("fsdp", 2))
    }
    assert all(want.setup.grad_comm_dtype == "fp32" for want in found)
    assert all(want.setup.precision == "bf16" for want in found)  # least compute hides the least


@pytest.mark.parametrize(
    "change",
    [("grad_comm_dtype: [fp32, bf16]\n", "grad_comm_dtype: fp32\n"), ("ranks: 2", "ranks: 1")],
    ids=["one wire dtype", "one rank"],
)
def test_without_a_choice_of_wire_nothing_is_read(tmp_path: Path, change: tuple[str, str]) -> None:
    plan = make_plan(tmp_path, SWEEP.replace(*change, 1))
    assert wants(plan) == []
    assert readings_of(plan).probes == 0


@pytest.mark.parametrize(("ranks", "samples"), [(1, 0), (2, 0), (3, 1), (512, 1)])
def test_gradients_are_sampled_where_the_real_run_has_more_than_two_ranks(
    tmp_path: Path, ranks: int, samples: int
) -> None:
    plan = make_plan(tmp_path, SWEEP + f"target: {{world_size: {ranks}}}\n")
    assert sum(want.ask == "sample" for want in wants(plan)) == samples


def test_a_wire_that_gains_nothing_is_not_searched_and_the_reason_has_its_numbers(
    tmp_path: Path,
) -> None:
    store, launcher = swept(make_plan(tmp_path), exposing(0.0))
    assert asked(launcher) == {"exposure": 1}
    assert wires(store) == {"fp32"}
    (removed,) = store.about["removed"]
    assert (removed["restriction"], removed["count"]) == ("communication-not-exposed", 2)
    assert "deepspeed stages 0 and 1: Gradient communication is exposed for" in removed["reason"]
    assert removed["reason"].endswith("below the margin of 1 %.")


def test_a_wire_that_can_gain_is_searched(tmp_path: Path) -> None:
    store, _ = swept(make_plan(tmp_path), exposing(0.3))
    assert wires(store) == {"fp32", "bf16"}
    assert store.about["removed"] == []
    assert "bf16.wire-bf16" in result_of(store)["winner"]


def test_a_way_of_reducing_that_gains_nothing_does_not_close_another(tmp_path: Path) -> None:
    def answer(request: ReadingRequest) -> Reading:
        share = 0.3 if request.setup.zero_stage == 1 else 0.0
        return make_exposure(share) if request.ask == "exposure" else READINGS[request.ask]

    store, _ = swept(make_plan(tmp_path, STAGES), answer)
    tried = {(probe.setup.zero_stage, probe.setup.grad_comm_dtype) for probe in store.probes()}
    assert tried == {(1, "fp32"), (1, "bf16"), (2, "fp32")}


def test_what_always_reduces_is_compared_with_a_launch_of_one_rank(tmp_path: Path) -> None:
    store, launcher = swept(make_plan(tmp_path, STAGES))
    assert len(launcher.alone) == 1
    stage2 = [request for request in launcher.asked if request.ask == "exposure"][1:]
    assert [request.setup.zero_stage for request in stage2] == [2, 2]
    found = store.findings()["communication deepspeed stages 2 and 3"]
    assert isinstance(found, Communication)
    assert found.exposed_seconds == pytest.approx(0.3 * found.backward_seconds, rel=0.05)


def test_a_launch_of_one_rank_that_fails_leaves_the_axis_open(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, STAGES)
    store, _ = swept(plan, broken=lambda number, alone: alone)
    found = store.findings()["communication deepspeed stages 2 and 3"]
    assert isinstance(found, Missing)
    assert {probe.setup.grad_comm_dtype for probe in store.probes() if probe.setup.zero_stage > 1}
    result = result_of(store)
    assert result["verdict"] == "confirmed"
    assert any(item["kind"] == "unread" for item in result["warnings"])


def test_a_reading_that_fails_leaves_the_axis_open_and_is_not_tried_for_ever(
    tmp_path: Path,
) -> None:
    def answer(request: ReadingRequest) -> Reading | Outcome:
        lost = Outcome(kind="hang", reason="because")
        return lost if request.ask == "exposure" else READINGS[request.ask]

    store, launcher = swept(make_plan(tmp_path), answer)
    assert asked(launcher) == {"exposure": 1}
    assert store.findings()["communication deepspeed stages 0 and 1"] == Missing(
        reason="hang: because"
    )
    assert wires(store) == {"fp32", "bf16"}


def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, STAGES + "target: {world_size: 64}\n")
    store, first = swept(plan)
    assert asked(first) == {"exposure": 3, "sample": 1}  # one of them by one rank
    again = ScriptedLauncher(bf16_is_faster)
    assert make_sweep(plan, store, again).run() == "decided"
    assert again.asked == []
    assert again.started == []


def test_the_wire_at_more_ranks_is_told_with_what_it_loses(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, SWEEP + "target: {world_size: 512}\n")
    told: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Judged):
            told.append(event.text)

    swept(plan, listeners=[listen])
    (text,) = [item for item in told if item.startswith("bf16 on the wire at 512 ranks is a risk")]
    assert "a flat ring loses 3.1 %" in text
    assert any(item.startswith("fp32 on the wire at 512 ranks is fine") for item in told)


def test_the_prediction_of_the_same_gradients_is_the_same(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, SWEEP + "target: {world_size: 64}\n")
    assert READINGS["sample"] == make_sample()
    one, two = swept(plan)[0].findings(), swept(plan)[0].findings()
    assert one == two


def numerics_events(plan: Plan) -> int:
    """Events of a whole sweep up to the search."""
    seen: list[Event] = []
    swept(plan, listeners=[seen.append])
    return next(
        index
        for index, event in enumerate(seen)
        if isinstance(event, PhaseStarted) and event.phase == "search"
    )


def test_a_controller_that_is_killed_while_it_reads_goes_on_where_it_stopped(
    tmp_path: Path,
) -> None:
    plan = make_plan(tmp_path, STAGES + "target: {world_size: 64}\n")
    whole = result_of(swept(plan)[0])
    for position in range(1, numerics_events(plan) + 1):
        store = new_store(plan)
        dying = ScriptedLauncher(bf16_is_faster, listeners=[nth(position, die)])
        with pytest.raises(Killed):
            make_sweep(plan, store, dying).run()
        known = store.findings()
        rest = ScriptedLauncher(bf16_is_faster)
        assert make_sweep(plan, store, rest).run() == "decided"
        assert {name: store.findings()[name] for name in known} == known
        assert asked(rest).total() <= 4
        result = result_of(store)
        for part in ("verdict", "winner", "ratio", "interval"):
            assert result[part] == whole[part]


def test_ctrl_c_during_a_reading_stops_after_it_and_resuming_repeats_nothing(
    tmp_path: Path,
) -> None:
    plan = make_plan(tmp_path, STAGES)
    store, launcher = new_store(plan), ScriptedLauncher(bf16_is_faster)
    sweep = make_sweep(plan, store, launcher)
    launcher.listeners.append(nth(1, sweep.interrupt, ReadingStarted))
    assert sweep.run() == "interrupted"
    assert asked(launcher) == {"exposure": 1}
    assert store.probes() == []
    rest = ScriptedLauncher(bf16_is_faster)
    assert make_sweep(plan, store, rest).run() == "decided"
    assert asked(rest) == {"exposure": 2}
    assert {request.setup.zero_stage for request in rest.asked if request.ask == "exposure"} == {2}


def test_a_replay_of_a_run_asks_for_nothing_and_comes_to_the_same_verdict(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, STAGES)
    store, _ = swept(plan)
    again = new_store(plan)
    for name, finding in store.findings().items():
        again.find(name, finding)
    replay = ReplayLauncher(Recorded(store.probes(), 5.0), ranks=2)
    assert Sweep(plan, again, replay, lambda event: None).run() == "decided"
    assert again.findings() == store.findings()
    assert result_of(again)["winner"] == result_of(store)["winner"]


def test_a_replay_of_a_run_without_readings_still_ends(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    store, _ = swept(plan)
    again = new_store(plan)
    replay = ReplayLauncher(Recorded(store.probes(), 5.0), ranks=2)
    assert Sweep(plan, again, replay, lambda event: None).run() == "decided"
    assert all(isinstance(item, Missing) for item in again.findings().values())
    assert result_of(again)["verdict"] == "confirmed"


def test_the_first_start_of_a_run_is_charged_to_the_search(tmp_path: Path) -> None:
    ended: list[LaunchEnded] = []

    def listen(event: Event) -> None:
        if isinstance(event, LaunchEnded):
            ended.append(event)

    store, _ = swept(make_plan(tmp_path), cold_seconds=60.0, listeners=[listen])
    phases = store.about["spent"]
    assert phases["search"]["launch_seconds"] == 65.0 + 5.0
    assert phases["search"]["launches"] == 2
    assert phases["numerics"]["launches"] == 1  # that of the gates
    assert phases["numerics"]["seconds"] < 60
    assert sum(phase["launches"] for phase in phases.values()) == len(ended)


def test_a_launch_of_one_rank_that_fails_is_not_held_against_the_environment(
    tmp_path: Path,
) -> None:
    """Two failed launches in a row end a sweep; here the first of all failed as well."""
    plan = make_plan(tmp_path, STAGES)
    store, launcher = swept(plan, broken=lambda number, alone: alone or number == 0)
    assert launcher.alone == [2]
    assert result_of(store)["verdict"] == "confirmed"


def test_every_launch_ends_under_the_number_that_it_began_with(tmp_path: Path) -> None:
    """The one of one rank runs while another waits."""
    seen: list[Event] = []
    swept(make_plan(tmp_path, STAGES), listeners=[seen.append])
    begun = [(event.launch, event.ranks) for event in seen if isinstance(event, LaunchStarting)]
    ended = [event.launch for event in seen if isinstance(event, LaunchEnded)]
    assert begun[:3] == [(0, 2), (1, 1), (2, 2)]
    assert ended[:3] == [1, 0, 2]
    assert sorted(ended) == [number for number, _ in begun]


def test_what_one_rank_takes_to_start_is_no_cost_of_a_launch(tmp_path: Path) -> None:
    store, launcher = swept(make_plan(tmp_path, STAGES))
    assert len(store.about["starts"]) == len(launcher.started) - len(launcher.alone)


def test_ctrl_c_before_the_launch_of_one_rank_does_not_start_it(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, STAGES)
    store, launcher = new_store(plan), ScriptedLauncher(bf16_is_faster)
    sweep = make_sweep(plan, store, launcher)
    launcher.listeners.append(nth(2, sweep.interrupt, ReadingStarted))
    assert sweep.run() == "interrupted"
    assert launcher.alone == []
    rest = ScriptedLauncher(bf16_is_faster)
    assert make_sweep(plan, store, rest).run() == "decided"
    assert len(rest.alone) == 1


def test_another_margin_judges_what_was_measured_before(tmp_path: Path) -> None:
    """Half the bytes can gain 18 % at most; nobody changes for less than 30 %."""
    plan = make_plan(tmp_path)
    store = new_store(plan)
    dying = ScriptedLauncher(bf16_is_faster, listeners=[nth(1, die, ProbeFinished)])
    with pytest.raises(Killed):
        make_sweep(plan, store, dying).run()
    wide = make_plan(tmp_path, SWEEP + "margin: 30%\n")
    rest = ScriptedLauncher(bf16_is_faster)
    assert make_sweep(wide, store, rest).run() == "decided"
    assert asked(rest) == {}
    (found,) = [item for item in store.findings().values() if isinstance(item, Communication)]
    assert found.closed
    assert "below the margin of 30 %" in store.about["removed"][0]["reason"]
    assert wires(store) == {"fp32"}


def test_what_the_survey_removed_is_still_told_by_a_run_that_is_resumed_after_the_search(
    tmp_path: Path,
) -> None:
    plan = make_plan(tmp_path)
    store = new_store(plan)
    dying = ScriptedLauncher(bf16_is_faster, readings=exposing(0.0))

    def die_late(event: Event) -> None:
        if isinstance(event, ProbeFinished) and event.probe.phase != "search":
            raise Killed

    dying.listeners.append(die_late)
    with pytest.raises(Killed):
        make_sweep(plan, store, dying).run()
    describe(store, plan)  # as whoever opens the run does
    assert make_sweep(plan, store, ScriptedLauncher(bf16_is_faster)).run() == "decided"
    (removed,) = result_of(store)["removed"]
    assert removed["restriction"] == "communication-not-exposed"


def test_the_plan_of_a_run_counts_its_readings_and_gates(tmp_path: Path) -> None:
    store, _ = swept(make_plan(tmp_path, STAGES))
    numerics = store.about["planned"]["phases"]["numerics"]
    assert numerics["launches"] == [2, 2]  # of one rank, and the gates'; the first is the search's
    assert numerics["probes"] == [0, 0]
    assert 0 < numerics["minutes"][0] < numerics["minutes"][1]
