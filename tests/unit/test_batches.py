"""A script that trains another batch than the setup says."""

from __future__ import annotations

from dataclasses import replace

from autotune.outcome import Outcome
from autotune.sweep.batches import same_batch
from tests.build import make_measurement, make_probe, make_setup

BASELINE = make_setup()
BEFORE = [make_probe(0, BASELINE)]
assert BEFORE[0].outcome.measurement is not None
TOKENS = BEFORE[0].outcome.measurement.tokens_per_step


def outcome_of(tokens: int) -> Outcome:
    return Outcome(kind="ok", measurement=replace(make_measurement(), tokens_per_step=tokens))


def test_the_same_tokens_a_step_are_fine() -> None:
    assert same_batch(BASELINE, BEFORE, outcome_of(TOKENS)).kind == "ok"


def test_padding_may_differ_a_little() -> None:
    assert same_batch(BASELINE, BEFORE, outcome_of(int(TOKENS * 1.05))).kind == "ok"


def test_half_the_tokens_are_inert_and_not_a_gain() -> None:
    found = same_batch(BASELINE, BEFORE, outcome_of(TOKENS // 2))
    assert found.kind == "inert"
    assert found.reason is not None
    assert "{micro_batch}" in found.reason


def test_before_the_first_baseline_nothing_is_compared() -> None:
    assert same_batch(BASELINE, [], outcome_of(1)).kind == "ok"


def test_failures_stay_what_they_are() -> None:
    failed = Outcome(kind="crash", reason="boom")
    assert same_batch(BASELINE, BEFORE, failed) == failed
