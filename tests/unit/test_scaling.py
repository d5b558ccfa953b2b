"""The choice of a loss scale in a sweep, and what is trained with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from autotune.errors import EnvironmentFailedError, UsageError
from autotune.events import Event, Judged, ProbeFinished
from autotune.launch.replay import Recorded, ReplayLauncher
from autotune.numerics.findings import ScaleChoice
from autotune.numerics.names import scale_name
from autotune.numerics.policy import evaluate
from autotune.outcome import Outcome
from autotune.readings import Reading, ScaleTrace
from autotune.request import ReadingRequest
from autotune.scales import DEFAULTS
from autotune.search import Store
from autotune.search.store import LOSS_SCALE
from autotune.setup import LossScale, Setup
from autotune.sweep import Plan, Sweep
from autotune.wiring.results import result_of
from tests.readings import READINGS, make_trace
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

HALF = SWEEP.replace("[fp32, bf16]\n  grad", "[fp32, fp16]\n  grad").replace(
    "grad_comm_dtype: [fp32, bf16]\n  zero_stage: 1\n",
    "grad_comm_dtype: fp32\n  zero_stage: 1\n  loss_scale: {initial_power: [10, 12, 16], "
    "window: 1000, hysteresis: 2, minimum: 1}\n",
)


def fp16_is_faster(setup: Setup, where: Where) -> float:
    return 0.3 if setup.precision == "fp16" else 0.0


def with_trace(trace: Reading | Outcome) -> Any:
    def answer(request: ReadingRequest) -> Reading | Outcome:
        return trace if request.ask == "trace" else READINGS[request.ask]

    return answer


SOUND = with_trace(make_trace(14))


def swept(plan: Plan, readings: Any = SOUND, *listeners: Any) -> tuple[Store, ScriptedLauncher]:
    store = new_store(plan)
    launcher = ScriptedLauncher(fp16_is_faster, readings=readings, listeners=list(listeners))
    assert make_sweep(plan, store, launcher).run() == "decided"
    return store, launcher


def choice_of(store: Store) -> ScaleChoice:
    (found,) = [item for item in store.findings().values() if isinstance(item, ScaleChoice)]
    return found


def scales_probed(store: Store) -> set[LossScale]:
    return {probe.setup.loss_scale for probe in store.probes() if probe.setup.loss_scale}


def test_the_chosen_policy_is_what_search_gates_and_confirmation_train_with(tmp_path: Path) -> None:
    store, launcher = swept(make_plan(tmp_path, HALF))
    chosen = choice_of(store).chosen
    assert chosen is not None
    # The lowest start reaches the ceiling last, and nothing vanishes at it.
    assert chosen.policy == LossScale(initial_power=10, window=1000, hysteresis=2, minimum=1)
    assert choice_of(store).tried == 3
    assert scales_probed(store) == {chosen.policy}
    halves = [probe for probe in store.probes() if probe.setup.precision == "fp16"]
    assert {probe.phase for probe in halves} == {"search", "confirm"}
    result = result_of(store)
    assert result["verdict"] == "confirmed"
    assert ".scale10-1000-2-1" in result["winner"]
    gates = [request.setup for request in launcher.asked if request.ask == "gradient"]
    assert {setup.loss_scale for setup in gates} == {None, chosen.policy}


def test_the_search_for_the_scale_is_a_study_of_the_runs_own_storage(tmp_path: Path) -> None:
    store, _ = swept(make_plan(tmp_path, HALF))
    names = optuna.get_all_study_names(storage=store.storage)
    assert [name for name in names if name.startswith(LOSS_SCALE)] == [
        f"{LOSS_SCALE} deepspeed mb2x2 over 10000"
    ]
    assert not any(probe.phase == "numerics" for probe in store.probes())


def test_throughput_counts_only_the_steps_that_the_chosen_scale_lets_train(tmp_path: Path) -> None:
    """Every 40th step overflows at the scale that the other steps allow."""
    trace = make_trace(finite_powers=(*(14,) * 39, 9))
    store, _ = swept(make_plan(tmp_path, HALF.replace("[10, 12, 16]", "7")), with_trace(trace))
    chosen = choice_of(store).chosen
    assert chosen is not None
    useful = chosen.useful_step_fraction
    assert 0.99 < useful < 1
    assert scales_probed(store) == {chosen.policy}
    for probe in store.probes():
        measured = probe.outcome.measurement
        assert measured is not None
        if probe.setup.loss_scale is None:
            assert measured.useful_step_fraction is None
        else:
            assert measured.useful_step_fraction == useful
            raw = measured.tokens_per_step / measured.backward_seconds[0]
            assert measured.median_backward_tokens_per_second == pytest.approx(useful * raw)


def test_a_baseline_in_fp16_counts_its_own_useful_steps(tmp_path: Path) -> None:
    text = HALF.replace("precision: fp32, zero", "precision: fp16, zero")
    text = text.replace("baseline: {", "baseline: {loss_scale: {initial_power: 16}, ")
    text += "target: {steps: 100}\n"
    plan = make_plan(tmp_path, text)
    store, _ = swept(plan, with_trace(make_trace(14)))
    fractions = {
        probe.outcome.measurement.useful_step_fraction
        for probe in store.probes()
        if probe.setup == plan.baseline and probe.outcome.measurement
    }
    # From 2 ** 16 the scale halves twice; with a hysteresis of 2 that costs 3 steps of 100.
    (score,) = evaluate("deepspeed", [LossScale()], make_trace(14), 100)
    assert fractions == {score.useful_step_fraction} == {0.97}


def test_a_baseline_whose_scale_lets_no_step_of_the_real_run_train_is_named(
    tmp_path: Path,
) -> None:
    text = HALF.replace("precision: fp32, zero", "precision: fp16, zero")
    text = text.replace("baseline: {", "baseline: {loss_scale: {initial_power: 32}, ")
    plan = make_plan(tmp_path, text + "target: {steps: 10}\n")
    with pytest.raises(EnvironmentFailedError, match="none of 10 steps apply an update"):
        swept(plan, with_trace(make_trace(14)))


def test_where_no_scale_trains_fp16_is_not_tried_and_the_reason_is_kept(tmp_path: Path) -> None:
    told: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, Judged):
            told.append(event.text)

    plan = make_plan(tmp_path, HALF)
    store, _ = swept(plan, with_trace(make_trace(5)), listen)
    assert choice_of(store).chosen is None
    assert scales_probed(store) == set()
    (removed,) = [
        item for item in store.about["removed"] if item["restriction"] == "no-loss-scale-trains"
    ]
    assert removed["count"] == 1
    assert "none of 3 loss scales trains" in removed["reason"]
    assert any("none of 3 loss scales trains" in text for text in told)
    assert result_of(store)["verdict"] == "keep-baseline"


def test_a_space_of_fp16_alone_in_which_no_scale_trains_is_an_error_that_says_so(
    tmp_path: Path,
) -> None:
    plan = make_plan(tmp_path, HALF.replace("precision: [fp32, fp16]", "precision: fp16"))
    with pytest.raises(UsageError, match="no-loss-scale-trains: 1"):
        swept(plan, with_trace(make_trace(5)))


def test_without_a_trace_the_usual_scale_is_tried_and_its_steps_are_not_discounted(
    tmp_path: Path,
) -> None:
    lost = Outcome(kind="crash", reason="because")
    store, _ = swept(make_plan(tmp_path, HALF), with_trace(lost))
    assert not [item for item in store.findings().values() if isinstance(item, ScaleChoice)]
    assert scales_probed(store) == {DEFAULTS["deepspeed"]}
    measured = [probe.outcome.measurement for probe in store.probes()]
    assert {item.useful_step_fraction for item in measured if item} == {None}


def test_a_run_that_goes_on_with_another_list_of_scales_chooses_again(tmp_path: Path) -> None:
    """Told that no scale trains, the user lists others and resumes."""
    plan = make_plan(tmp_path, HALF.replace("[10, 12, 16]", "16"))
    store = new_store(plan)
    launcher = ScriptedLauncher(fp16_is_faster)
    launcher.listeners.append(nth(1, die, ProbeFinished))
    with pytest.raises(Killed):
        make_sweep(plan, store, launcher).run()
    assert choice_of(store).chosen is None
    other = make_plan(tmp_path, HALF.replace("[10, 12, 16]", "10"))
    again = ScriptedLauncher(fp16_is_faster)
    assert make_sweep(other, store, again).run() == "decided"
    assert scales_probed(store) == {LossScale(initial_power=10)}
    assert "trace" not in {request.ask for request in again.asked}


def test_a_choice_is_kept_and_not_searched_again(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, HALF)
    store, _ = swept(plan)
    kept = replace(choice_of(store), text="kept")
    store.find(scale_name(plan_setup(plan), plan.horizon), kept)
    assert make_sweep(plan, store, ScriptedLauncher(fp16_is_faster)).run() == "decided"
    assert choice_of(store).text == "kept"


def plan_setup(plan: Plan) -> Setup:
    return next(setup for setup in plan.space.valid() if setup.loss_scale)


def test_a_run_of_fp16_alone_is_raced_when_it_is_resumed_after_the_screening(
    tmp_path: Path,
) -> None:
    """The chosen scale is not the one that the space begins with."""
    plan = make_plan(tmp_path, HALF.replace("precision: [fp32, fp16]", "precision: fp16"))
    store = new_store(plan)
    launcher = ScriptedLauncher(fp16_is_faster)

    def listen(event: object) -> None:
        if isinstance(event, ProbeFinished) and event.probe.block == 0:
            raise Killed

    launcher.listeners.append(listen)
    with pytest.raises(Killed):
        make_sweep(plan, store, launcher).run()
    removed = store.about["removed"]
    assert make_sweep(plan, store, ScriptedLauncher(fp16_is_faster)).run() == "decided"
    assert result_of(store)["verdict"] == "confirmed"
    assert store.about["removed"] == removed


def test_a_replay_of_an_fp16_run_chooses_the_same_scale_and_asks_nothing(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, HALF)
    store, _ = swept(plan)
    again = new_store(plan)
    for name, finding in store.findings().items():
        again.find(name, finding)
    launcher = ReplayLauncher(Recorded(store.probes(), 5.0), ranks=2)
    assert Sweep(plan, again, launcher, lambda event: None).run() == "decided"
    assert again.findings() == store.findings()
    names = ("verdict", "winner")
    assert [result_of(again)[name] for name in names] == [result_of(store)[name] for name in names]


def test_each_shape_and_scaler_has_a_choice_of_its_own(tmp_path: Path) -> None:
    text = HALF.replace("backend: deepspeed\n  prec", "backend: [deepspeed, fsdp]\n  prec")
    text = text.replace(
        "zero_stage: 1\n  loss", "zero_stage: [1, 3]\n  micro_batch: [2, 4]\n  loss"
    )
    store, launcher = swept(make_plan(tmp_path, text))
    traced = [request.setup for request in launcher.asked if request.ask == "trace"]
    assert sorted(setup.micro_batch for setup in traced) == [2, 4]
    found = [item for item in store.findings().values() if isinstance(item, ScaleChoice)]
    assert {(item.scaler, item.micro_batch) for item in found} == {
        ("deepspeed", 2),
        ("deepspeed", 4),
        ("grad-scaler", 2),
        ("grad-scaler", 4),
    }
    traces = [item for item in store.findings().values() if isinstance(item, ScaleTrace)]
    assert len(traces) == 2


def test_every_kill_up_to_the_first_probe_leads_to_the_same_scale_and_verdict(
    tmp_path: Path,
) -> None:
    plan = make_plan(tmp_path, HALF)
    seen: list[Event] = []
    whole = swept(plan, SOUND, seen.append)[0]
    first = next(place for place, item in enumerate(seen, 1) if isinstance(item, ProbeFinished))
    choices = [place for place, item in enumerate(seen, 1) if isinstance(item, Judged)]
    assert choices[0] < first  # of the loss scale
    for position in range(1, first + 1):
        store = new_store(plan)
        dying = ScriptedLauncher(fp16_is_faster, listeners=[nth(position, die)])
        with pytest.raises(Killed):
            make_sweep(plan, store, dying).run()
        rest = ScriptedLauncher(fp16_is_faster)
        assert make_sweep(plan, store, rest).run() == "decided"
        assert choice_of(store) == choice_of(whole)
        for part in ("verdict", "winner", "ratio", "interval"):
            assert result_of(store)[part] == result_of(whole)[part]
        if position >= choices[0]:
            assert "trace" not in {request.ask for request in rest.asked}
