"""Limits that a sweep gets after it measured, and what the default ones refuse on many ranks."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.decide import Out, Rules, start_race
from autotune.events import Event, ProbeFinished
from autotune.readings import GradientSample, Reading
from autotune.request import ReadingRequest
from autotune.search import Store
from autotune.setup import Setup
from autotune.sweep import Plan
from autotune.sweep.examine import still_sound
from autotune.wiring.results import result_of
from tests.build import make_setup
from tests.readings import READINGS, make_gradient_reading
from tests.scripted import (
    SWEEP,
    Killed,
    ScriptedLauncher,
    Where,
    describe,
    make_plan,
    make_sweep,
    new_store,
)

AT_SCALE = SWEEP + "target: {world_size: 512}\n"
NARROW, WIDE = "bf16.wire-bf16", "bf16.wire-fp32"


def narrow_is_faster(setup: Setup, where: Where) -> float:
    return 0.2 * (setup.precision == "bf16") + 0.02 * (setup.grad_comm_dtype == "bf16")


def shared_mean(request: ReadingRequest) -> Reading:
    """Gradients that differ little between ranks, so a ring adds up what it rounds."""
    if request.ask != "sample":
        return READINGS[request.ask]
    chance = np.random.default_rng(0)
    values = chance.normal(size=500) + 0.01 * chance.normal(size=(16, 500))
    data = base64.b64encode(values.astype("<f4").tobytes()).decode()
    return GradientSample(micro_batches=16, elements=500, data=data)


def skewed(*names: str) -> Callable[[ReadingRequest], Reading]:
    """Setups with these names in their key have a cosine that passes by default, not by far."""

    def answer(request: ReadingRequest) -> Reading:
        if request.ask == "gradient" and any(name in request.setup.key for name in names):
            return make_gradient_reading(cosine=0.9995)
        return READINGS[request.ask]

    return answer


@pytest.mark.parametrize(
    ("text", "searched"),
    [
        (AT_SCALE, {"fp32"}),
        (AT_SCALE + "gates: {wire_error: 0.5}\n", {"fp32", "bf16"}),
        (SWEEP, {"fp32", "bf16"}),
        (SWEEP + "target: {world_size: 2}\n", {"fp32", "bf16"}),
    ],
    ids=["512 ranks", "a limit of the user's own", "no target", "as many ranks as measured"],
)
def test_a_wire_that_loses_over_5_percent_on_the_real_ranks_is_not_searched(
    tmp_path: Path, text: str, searched: set[str]
) -> None:
    plan = make_plan(tmp_path, text)
    store, launcher = new_store(plan), ScriptedLauncher(narrow_is_faster, readings=shared_mean)
    assert make_sweep(plan, store, launcher).run() == "decided"
    assert {probe.setup.grad_comm_dtype for probe in store.probes()} == searched
    names = {item["restriction"]: item["count"] for item in store.about["removed"]}
    assert names == ({"wire-error-at-target": 2} if searched == {"fp32"} else {})


def stopped(plan: Plan, readings: Callable[[ReadingRequest], Reading], phase: str) -> Store:
    """A run that was killed in a phase: after a whole search, or in the middle of the blocks."""

    def listen(event: Event) -> None:
        if isinstance(event, ProbeFinished) and event.probe.phase == phase:
            late = event.probe.number == 4 if phase == "search" else event.probe.block == 1
            if late:
                raise Killed

    store = new_store(plan)
    launcher = ScriptedLauncher(narrow_is_faster, readings=readings, listeners=[listen])
    with pytest.raises(Killed):
        make_sweep(plan, store, launcher).run()
    return store


def resumed(store: Store, plan: Plan, readings: Callable[[ReadingRequest], Reading]) -> None:
    describe(store, plan)  # as whoever opens the run does
    launcher = ScriptedLauncher(narrow_is_faster, readings=readings)
    assert make_sweep(plan, store, launcher).run() == "decided"


def test_a_wire_that_is_refused_only_after_it_was_probed_does_not_race(tmp_path: Path) -> None:
    store = stopped(make_plan(tmp_path), shared_mean, "search")
    before = store.probes()
    assert any(NARROW in probe.setup.key for probe in before)
    resumed(store, make_plan(tmp_path, AT_SCALE), shared_mean)
    late = [probe.setup for probe in store.probes() if probe.phase != "search"]
    assert {setup.grad_comm_dtype for setup in late} == {"fp32"}
    reasons = {item["key"]: item["reason"] for item in store.about["race"]["dropped"]}
    (reason,) = [text for key, text in reasons.items() if NARROW in key]
    assert reason.startswith("unsafe: wire-error: bf16 on the wire at 512 ranks is refused: ")
    assert WIDE in result_of(store)["winner"]


@pytest.mark.parametrize("limits", ["gates: {cosine: 1e-4}\n", ""], ids=["stricter", "as before"])
def test_a_limit_that_comes_in_the_race_leaves_whom_it_refuses_out_of_the_confirmation(
    tmp_path: Path, limits: str
) -> None:
    answer = skewed(NARROW)
    store = stopped(make_plan(tmp_path), answer, "race")
    resumed(store, make_plan(tmp_path, SWEEP + limits), answer)
    confirmed = {probe.setup.key for probe in store.probes() if probe.phase == "confirm"}
    assert any(NARROW in key for key in confirmed) is not bool(limits)
    result = result_of(store)
    assert result["verdict"] == "confirmed"
    assert (WIDE in result["winner"]) is bool(limits)


def test_where_a_new_limit_refuses_every_setup_the_baseline_is_kept(tmp_path: Path) -> None:
    answer = skewed(NARROW, WIDE)
    store = stopped(make_plan(tmp_path), answer, "race")
    resumed(store, make_plan(tmp_path, SWEEP + "gates: {cosine: 1e-4}\n"), answer)
    assert store.about["confirmations"][0]["setups"] == []
    assert result_of(store)["verdict"] == "keep-baseline"


BASELINE, A, B, C = (make_setup(bucket_bytes=size) for size in (1, 2, 3, 4))


def test_a_race_of_which_nothing_is_refused_is_as_it_was() -> None:
    race = start_race(Rules(), BASELINE, (A, B))
    assert still_sound(race, {}) is race


def test_who_is_refused_leaves_a_race_with_the_reason_and_the_others_stay() -> None:
    found = still_sound(start_race(Rules(), BASELINE, (A, B)), {A: "unsafe"})
    assert found.setups == (B,)
    assert found.out == (Out(A, 0, "unsafe"),)


def test_where_the_winner_of_a_race_is_refused_those_it_beat_come_back_but_not_what_failed() -> (
    None
):
    race = start_race(Rules(), BASELINE, (A, B, C))
    beaten, failed = Out(B, 3, "behind"), Out(C, 1, "oom: too big", failed=True)
    over = replace(race, setups=(A,), out=(beaten, failed))
    found = still_sound(over, {A: "unsafe"})
    assert found.setups == (B,)
    assert {item.setup for item in found.out} == {A, C}
    assert found.rows == ()
