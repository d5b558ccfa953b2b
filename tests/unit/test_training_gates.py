"""Gates that a script's own losses and gradient norms are sent through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autotune.numerics.gates import GateResult, refusal
from autotune.numerics.thresholds import Thresholds
from autotune.numerics.training import Run, Training, judge_training
from tests.build import make_setup

STEPS = 20
LOSSES = tuple(6.0 - 0.002 * step for step in range(STEPS))
NORMS: tuple[float | None, ...] = tuple(1.2 - 0.001 * step for step in range(STEPS))
SETUP = make_setup(precision="bf16", grad_comm_dtype="bf16")


def judged(
    losses: Sequence[float] = LOSSES,
    norms: Sequence[float | None] = NORMS,
    *,
    skipped: int = 0,
    references: Sequence[Run] = (Run(losses=LOSSES, norms=NORMS),),
    user: dict[str, float] | None = None,
) -> tuple[GateResult, ...]:
    training = Training(
        run=Run(losses=tuple(losses), norms=tuple(norms)),
        skipped_steps=skipped,
        reference="the-reference",
        references=tuple(references),
    )
    return judge_training(SETUP, training, Thresholds(user or {}))


def scaled(factor: float) -> list[float | None]:
    return [None if norm is None else norm * factor for norm in NORMS]


def test_a_run_like_the_reference_passes_every_gate() -> None:
    results = judged()
    assert {item.gate for item in results} == {
        *("finite-forward", "skipped-steps", "gradient-norm", "loss-band")
    }
    assert all(item.status == "pass" for item in results)


def test_a_gradient_divided_by_a_loss_scale_that_was_never_applied_is_refused() -> None:
    failed = refusal(judged(norms=scaled(2.0**-16)))
    assert failed is not None
    assert failed.gate == "gradient-norm"
    assert "1.526e-05 times that of the-reference" in failed.text


def test_a_gradient_that_is_averaged_twice_is_refused() -> None:
    failed = refusal(judged(norms=scaled(0.5)))
    assert failed is not None
    assert failed.gate == "gradient-norm"


def test_rounding_is_no_reason_to_refuse() -> None:
    assert refusal(judged(norms=scaled(1.02))) is None


def test_runs_of_the_reference_that_differ_widen_the_limit() -> None:
    apart = [Run(losses=LOSSES, norms=tuple(scaled(factor))) for factor in (0.8, 1.0, 1.2)]
    assert refusal(judged(norms=scaled(1.3), references=apart)) is None
    assert refusal(judged(norms=scaled(3.0), references=apart)) is not None


def test_a_loss_that_is_not_finite_is_named_with_its_step() -> None:
    losses = [*LOSSES[:7], math.nan, *LOSSES[8:]]
    failed = refusal(judged(losses))
    assert failed is not None
    assert failed.reason == "finite-forward: the loss of step 8 of 20 is nan"


def test_a_loss_that_does_not_fall_with_the_reference_is_refused() -> None:
    fast = tuple(6.0 - 0.2 * step for step in range(STEPS))
    stuck = [6.0] * STEPS
    failed = refusal(judged(stuck, references=[Run(losses=fast, norms=NORMS)]))
    assert failed is not None
    assert failed.gate == "loss-band"


def test_a_run_that_skipped_its_first_steps_is_compared_with_as_many_applied_ones() -> None:
    fast = tuple(6.0 - 0.2 * step for step in range(STEPS))
    late = (6.0, 6.0, *fast[: STEPS - 2])
    norms: tuple[float | None, ...] = (None, None, *NORMS[2:])
    reference = [Run(losses=fast, norms=NORMS)]
    assert refusal(judged(late, norms, skipped=2, references=reference)) is None


def test_all_steps_skipped_is_a_refusal() -> None:
    failed = refusal(judged(norms=[None] * STEPS, skipped=STEPS))
    assert failed is not None
    assert failed.gate == "skipped-steps"


def test_norms_that_were_not_taken_leave_the_other_gates() -> None:
    results = judged(norms=[None] * STEPS)
    assert "gradient-norm" not in {item.gate for item in results}
    assert refusal(results) is None


def test_a_limit_of_the_users_own_holds() -> None:
    failed = refusal(judged(norms=scaled(1.02), user={"gradient-norm": 0.01}))
    assert failed is not None
    assert failed.changed


@given(st.floats(0.1, 10.0))
def test_the_gate_is_blind_to_the_unit_of_the_norm(unit: float) -> None:
    run = Run(losses=LOSSES, norms=tuple(scaled(unit)))
    training = Training(run=run, skipped_steps=0, reference="r", references=(run,))
    results = judge_training(replace(SETUP, precision="fp32"), training, Thresholds.default())
    assert refusal(results) is None
