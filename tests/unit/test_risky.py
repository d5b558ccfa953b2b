"""Setups that are warned of in the real run: chosen only where no other one is confirmed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.decide import (
    Entry,
    Observation,
    Out,
    Rules,
    Standing,
    State,
    Verdict,
    absorb,
    candidates,
    planned_confirmation,
    screen,
    start_confirmation,
    start_race,
    verdict,
)
from autotune.setup import Setup
from autotune.wiring.results import result_of
from tests.build import make_setup
from tests.scripted import SWEEP, ScriptedLauncher, Where, make_plan, make_sweep, new_store

BASELINE = make_setup()
NARROW = make_setup(precision="bf16", grad_comm_dtype="bf16")
NARROW3 = make_setup(precision="bf16", grad_comm_dtype="bf16", zero_stage=3)
NARROW2 = make_setup(precision="bf16", grad_comm_dtype="bf16", zero_stage=2)
WIDE = make_setup(precision="bf16")
WIDE3 = make_setup(precision="bf16", zero_stage=3)
RISKY = frozenset((NARROW, NARROW2, NARROW3))
WOBBLE = (0.001, -0.002, 0.0015, -0.0005, 0.001, -0.001)


def judged(means: Mapping[Setup, float], risky: frozenset[Setup]) -> Verdict:
    """The verdict of six launches in which each setup gains so much, log."""
    setups = tuple(means)
    state = start_confirmation(Rules(), BASELINE, setups, distance=0.1, most=6, risky=risky)
    for launch, noise in enumerate(WOBBLE):
        for entry in state.entries:
            label = noise / 4 if entry.control else 0.0
            speed = means[entry.setup] + noise if entry.setup in means else label
            found = Observation(
                launch=launch, entry=entry, kind="ok", backward=speed, end_to_end=speed
            )
            state = absorb(state, found)
    return verdict(state)


def raced(*setups: Setup, out: Sequence[Out] = ()) -> State:
    state = start_race(Rules(), BASELINE, setups)
    left = {item.setup for item in out}
    staying = tuple(setup for setup in setups if setup not in left)
    return replace(state, setups=staying, out=tuple(out))


def test_a_risky_setup_is_passed_over_where_another_one_is_confirmed() -> None:
    means = {NARROW: 0.3, WIDE: 0.2}
    assert judged(means, frozenset()).winner == NARROW
    found = judged(means, RISKY)
    assert (found.name, found.winner) == ("confirmed", WIDE)
    assert found.claim is not None
    assert found.claim.setup == WIDE
    assert found.equivalent == (WIDE,)
    assert {claim.setup for claim in found.claims} == {NARROW, WIDE}  # its numbers are kept


def test_a_risky_setup_wins_where_no_other_gain_is_shown() -> None:
    found = judged({NARROW: 0.3, WIDE: 0.005}, RISKY)
    assert (found.name, found.winner) == ("confirmed", NARROW)


def test_among_those_without_risk_the_rules_are_as_ever() -> None:
    found = judged({NARROW: 0.3, WIDE: 0.2, WIDE3: 0.1}, RISKY)
    assert found.winner == WIDE


def test_where_every_candidate_is_risky_the_best_other_one_is_confirmed_too() -> None:
    setups = (NARROW, NARROW2, NARROW3, WIDE3, WIDE)
    slower = [Out(WIDE, 3, "behind"), Out(WIDE3, 3, "behind")]
    screened = dict(zip(setups, (0.3, 0.29, 0.28, 0.1, 0.2), strict=True))
    race = raced(*setups, out=slower)
    assert candidates(race, screened, 0.01).setups == (NARROW, NARROW2, NARROW3)
    found = candidates(race, screened, 0.01, RISKY)
    assert found.setups == (NARROW, WIDE, NARROW2)


def test_a_setup_that_failed_in_the_race_does_not_come_back() -> None:
    race = raced(NARROW, WIDE, out=[Out(WIDE, 1, "oom: too big", failed=True)])
    assert candidates(race, {NARROW: 0.3, WIDE: 0.2}, 0.01, RISKY).setups == (NARROW,)


def test_a_probe_that_fails_in_a_race_is_known_to_have_failed() -> None:
    state = start_race(Rules(), BASELINE, (NARROW, WIDE))
    failed = Observation(launch=0, entry=Entry(WIDE), kind="invalid", reason="no such key")
    (out,) = absorb(state, failed).out
    assert (out.setup, out.failed) == (WIDE, True)


def test_a_candidate_without_risk_needs_no_further_one() -> None:
    race = raced(NARROW, WIDE, NARROW3)
    screened = {NARROW: 0.3, WIDE: 0.2, NARROW3: 0.1}
    usual = candidates(race, screened, 0.01)
    assert candidates(race, screened, 0.01, RISKY) == usual
    assert WIDE in usual.setups


def test_the_plan_of_a_confirmation_keeps_who_is_risky() -> None:
    plan = {
        "setups": [NARROW.to_dict(), WIDE.to_dict()],
        "distance": 0.1,
        "most": 6,
        "risky": [NARROW.to_dict()],
    }
    assert planned_confirmation(Rules(), BASELINE, plan).risky == {NARROW}
    del plan["risky"]
    assert planned_confirmation(Rules(), BASELINE, plan).risky == frozenset()


SWEEP_AT_SCALE = SWEEP + "target: {world_size: 512}\n"


def narrow_is_faster(setup: Setup, where: Where) -> float:
    """bf16 gains 20 %, 10 % more with bf16 on the wire; probes differ by half a percent."""
    noise = 0.005 * math.sin(zlib.crc32(f"{setup.key} {where}".encode()))
    return 0.2 * (setup.precision == "bf16") + 0.1 * (setup.grad_comm_dtype == "bf16") + noise


@pytest.mark.parametrize(
    ("text", "wire"),
    [
        (SWEEP, "bf16"),
        (SWEEP_AT_SCALE, "fp32"),
        (SWEEP_AT_SCALE + "gates: {wire_error: 0.5}\n", "bf16"),
    ],
    ids=["no target", "warned of at 512 ranks", "a risk that the user takes"],
)
def test_a_sweep_chooses_another_wire_where_the_fastest_is_a_risk(
    tmp_path: Path, text: str, wire: str
) -> None:
    plan = make_plan(tmp_path, text)
    store, launcher = new_store(plan), ScriptedLauncher(narrow_is_faster)
    assert make_sweep(plan, store, launcher).run() == "decided"
    result = result_of(store)
    assert result["verdict"] == "confirmed"
    assert f"bf16.wire-{wire}" in result["winner"]
    said = any(
        "was passed over: bf16 on the wire at 512 ranks is a risk" in item
        for item in result["numerics"]["words"]
    )
    assert said is (wire == "fp32")


def test_a_refused_wire_is_not_even_searched(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, SWEEP_AT_SCALE + "gates: {wire_error: 0.02}\n")
    store, launcher = new_store(plan), ScriptedLauncher(narrow_is_faster)
    make_sweep(plan, store, launcher).run()
    assert {probe.setup.grad_comm_dtype for probe in store.probes()} == {"fp32"}
    (removed,) = store.about["removed"]
    assert removed["restriction"] == "wire-error-at-target"
    assert "a flat ring loses 3.1 % of the gradient (an upper bound)" in removed["reason"]


def standing(setup: Setup, ratio: float, end_to_end: float = 1.1) -> Standing:
    return Standing(setup, ratio, end_to_end)


def test_the_best_without_risk_enters_a_race_of_risky_setups_from_far_behind() -> None:
    ranked = [
        standing(NARROW, 1.5),
        standing(NARROW2, 1.45),
        standing(WIDE, 1.2),
        standing(WIDE3, 1.1),
    ]
    assert screen(ranked, BASELINE, 0.01).entrants == (NARROW, NARROW2)
    found = screen(ranked, BASELINE, 0.01, RISKY)
    assert found.entrants == (NARROW, WIDE, NARROW2)
    assert found.log_ratios[WIDE] == pytest.approx(math.log(1.2))
    assert [item.setup for item in found.dropped] == [WIDE3]


@pytest.mark.parametrize(
    ("ratio", "end_to_end"), [(0.9, 1.1), (1.2, 0.9)], ids=["slower", "slower end-to-end"]
)
def test_what_does_not_gain_is_no_choice_however_safe(ratio: float, end_to_end: float) -> None:
    ranked = [standing(NARROW, 1.5), standing(WIDE, ratio, end_to_end)]
    assert screen(ranked, BASELINE, 0.01, RISKY).entrants == (NARROW,)


def test_a_race_that_has_one_without_risk_stays_as_it_is() -> None:
    ranked = [standing(NARROW, 1.5), standing(WIDE, 1.48), standing(WIDE3, 1.2)]
    usual = screen(ranked, BASELINE, 0.01)
    assert screen(ranked, BASELINE, 0.01, RISKY) == usual
    assert usual.entrants == (NARROW, WIDE)
