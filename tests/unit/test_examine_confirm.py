"""A later confirmation goes through the gates, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.events import Event, SetupLeft
from tests.scripted import SWEEP, ScriptedLauncher, make_plan, make_sweep
from tests.unit.test_examine import SOUND, bf16_is_faster, examined, refusing, swept


def test_a_refused_setup_cannot_be_confirmed_by_name(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    store, launcher = swept(plan, refusing("bf16.wire-bf16"))
    setups = {probe.setup.key: probe.setup for probe in store.probes()}
    (refused,) = [setup for key, setup in setups.items() if "bf16.wire-bf16" in key]
    (good,) = [setup for key, setup in setups.items() if "bf16.wire-fp32" in key]
    before = len(store.probes())
    with pytest.raises(UsageError, match=r"The gates refuse every candidate.*gain"):
        make_sweep(plan, store, launcher).confirm_again([refused], 6)
    assert len(store.probes()) == before
    assert make_sweep(plan, store, launcher).confirm_again([refused, good], 6) == "decided"
    late = [probe.setup for probe in store.probes()[before:]]
    assert set(late) == {plan.baseline, good}


def test_a_candidate_that_was_never_examined_is_before_its_confirmation(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    store, launcher = swept(plan)
    setups = {probe.setup.key: probe.setup for probe in store.probes()}
    (late,) = [setup for key, setup in setups.items() if "fp32.wire-bf16" in key]
    assert late.key not in examined(launcher)
    again = ScriptedLauncher(bf16_is_faster, readings=SOUND)
    make_sweep(plan, store, again).confirm_again([late], 6)
    assert examined(again) == [late.key]


def test_whoever_is_refused_a_confirmation_is_named(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    store, _ = swept(plan, refusing("bf16.wire-bf16"))
    setups = {probe.setup.key: probe.setup for probe in store.probes()}
    wanted = [setup for key, setup in setups.items() if "bf16.wire" in key]
    left: list[SetupLeft] = []

    def listen(event: Event) -> None:
        if isinstance(event, SetupLeft):
            left.append(event)

    again = ScriptedLauncher(bf16_is_faster, readings=SOUND, listeners=[listen])
    make_sweep(plan, store, again).confirm_again(wanted, 6)
    (refused,) = [event for event in left if event.reason.startswith("unsafe: gain: ")]
    assert (refused.phase, refused.setup.grad_comm_dtype) == ("confirm", "bf16")


def test_a_confirmation_whose_gates_do_not_fit_its_budget_says_so(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    store, _ = swept(plan)
    setups = {probe.setup.key: probe.setup for probe in store.probes()}
    (late,) = [setup for key, setup in setups.items() if "fp32.wire-bf16" in key]
    poor = make_plan(tmp_path, SWEEP.replace("minutes: 60", "probes: 1"))
    again = ScriptedLauncher(bf16_is_faster, readings=SOUND)
    before = store.about["confirmations"]
    assert make_sweep(poor, store, again).confirm_again([late], 6) == "decided"
    assert again.started == []
    assert store.about["confirmations"] == before
    assert any(cut.startswith("confirm: skipped, the budget") for cut in store.about["cuts"])
