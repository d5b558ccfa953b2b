from __future__ import annotations

import json
import math
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.numerics.gates import Status, judge, refusal
from autotune.numerics.thresholds import NUMBERED, GateName, Thresholds
from autotune.readings import GradientReading, Siblings
from autotune.setup import Setup
from tests.build import make_setup
from tests.unit.test_gates import BF16, DEFAULT, FP16, FP32, SOUND

SEVERITY: dict[Status, int] = {"pass": 0, "warn": 1, "fail": 2}
LARGER_IS_TIGHTER = ("activation-headroom", "weights-move")
SETUPS = st.sampled_from([FP32, BF16, FP16, make_setup(precision="tf32")])
# Near the limits as well as far from them, and what is no number at all.
VALUES = (
    st.floats(0, 2)
    | st.floats(-1e30, 1e30)
    | st.builds(lambda power: 2.0**power, st.floats(-40, 20))
    | st.sampled_from([0.0, 1.0, math.nan, math.inf, -math.inf])
)
LOSSES = st.lists(st.floats(0, 20) | VALUES, min_size=8, max_size=8).map(tuple)
READINGS = st.builds(
    GradientReading,
    loss_finite=st.booleans(),
    activation_absmax=VALUES.map(abs),
    activation_module=st.just("layers.0"),
    skipped_tries=st.integers(0, 48),
    gain=VALUES,
    relative_error=VALUES.map(abs),
    cosine=VALUES,
    worst_tensor=st.just("head.weight"),
    worst_tensor_error=VALUES.map(abs),
    underflow_fraction=VALUES.map(abs),
    underflow_norm=VALUES.map(abs),
    reference_norm=VALUES.map(abs),
    moved_fraction=VALUES.map(abs),
    applied_steps=st.integers(0, 8),
    skipped_steps=st.integers(0, 8),
    losses=LOSSES,
    reference_losses=LOSSES,
    permuted_losses=st.tuples(LOSSES, LOSSES, LOSSES),
    sibling=st.none()
    | st.builds(Siblings, key=st.just("other"), gain=VALUES, relative_error=VALUES.map(abs)),
)
SOUND_BUT_FOR_ONE = st.builds(
    lambda name, value: replace(SOUND, **{name: value}),
    st.sampled_from(["gain", "relative_error", "cosine", "worst_tensor_error", "underflow_norm"]),
    VALUES.map(abs),
)
GATE_OF: dict[str, GateName] = {
    "activation_absmax": "finite-forward",
    "gain": "gain",
    "relative_error": "relative-error",
    "cosine": "cosine",
    "worst_tensor_error": "worst-tensor",
    "underflow_fraction": "underflow",
    "underflow_norm": "underflow",
    "reference_norm": "gain",
    "moved_fraction": "weights-move",
}


@given(
    setup=SETUPS,
    reading=SOUND_BUT_FOR_ONE | READINGS,
    gate=st.sampled_from(NUMBERED),
    limits=st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)).map(sorted),
)
def test_a_tighter_limit_never_judges_more_kindly(
    setup: Setup, reading: GradientReading, gate: GateName, limits: list[float]
) -> None:
    tight, loose = reversed(limits) if gate in LARGER_IS_TIGHTER else limits
    severe, mild = (
        {result.gate: result for result in judge(setup, reading, DEFAULT.with_user({gate: limit}))}
        for limit in (tight, loose)
    )
    assert severe.keys() == mild.keys()
    for name in mild:
        assert SEVERITY[severe[name].status] >= SEVERITY[mild[name].status]
    if refusal(mild.values()):
        assert refusal(severe.values())


def test_every_number_of_a_reading_has_its_gate() -> None:
    numbers = {field.name for field in fields(GradientReading) if field.type == "float"}
    assert numbers == GATE_OF.keys()


@pytest.mark.parametrize("name", GATE_OF)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@given(setup=SETUPS, reading=READINGS, limit=st.floats(0.1, 0.5))
def test_what_is_no_finite_number_fails_whatever_the_limits(
    name: str, value: float, setup: Setup, reading: GradientReading, limit: float
) -> None:
    thresholds = Thresholds.default().with_user(dict.fromkeys(NUMBERED, limit))
    change: dict[str, Any] = {name: value}
    for base in (reading, SOUND):
        results = judge(setup, replace(base, **change), thresholds)
        statuses = {result.gate: result.status for result in results}
        assert statuses[GATE_OF[name]] == "fail"
        assert refusal(results) is not None


@given(setup=SETUPS, at=st.integers(0, 47), value=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_loss_that_is_not_finite_fails_wherever_it_stands(
    setup: Setup, at: int, value: float
) -> None:
    losses = (*SOUND.losses[:at], value, *SOUND.losses[at + 1 :])
    found = refusal(judge(setup, replace(SOUND, losses=losses), DEFAULT))
    assert found is not None
    assert found.gate == "loss-band"


@given(
    setup=SETUPS,
    gain=st.sampled_from([math.nan, math.inf, 1.0]),
    error=st.sampled_from([math.nan, math.inf]),
)
def test_a_sibling_without_finite_numbers_never_passes(
    setup: Setup, gain: float, error: float
) -> None:
    sibling = Siblings(key="other", gain=gain, relative_error=error)
    results = judge(setup, replace(SOUND, sibling=sibling), DEFAULT)
    assert [item.status for item in results if item.gate == "same-gradient"] == ["warn"]


@given(setup=SETUPS, reading=READINGS)
def test_any_reading_is_judged_in_plain_sentences_and_json(
    setup: Setup, reading: GradientReading
) -> None:
    results = judge(setup, reading, DEFAULT)
    json.dumps([asdict(result) for result in results], allow_nan=False)
    for result in results:
        assert result.text
        assert result.text.isprintable()
    failed = [result for result in results if result.status == "fail"]
    assert refusal(results) == (failed[0] if failed else None)
