from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import pytest

from autotune.numerics.gates import GateResult, compared, explained_skips, judge, refusal
from autotune.numerics.thresholds import (
    GATES,
    NUMBERED,
    THRESHOLDS,
    GateName,
    Thresholds,
    show_number,
)
from autotune.readings import GradientReading, Siblings
from autotune.setup import LossScale, Precision, Setup, WireDtype
from tests.build import make_setup

FP32 = make_setup()
BF16 = make_setup(precision="bf16", grad_comm_dtype="bf16")
FP16 = make_setup(precision="fp16", grad_comm_dtype="fp16")
STAGE_2 = make_setup(zero_stage=2).key
DEFAULT = Thresholds.default()
STEPS = 48
FALLING = tuple(6.0 - 0.01 * step for step in range(STEPS))
JITTER = (0.001, -0.001, 0.0005)  # of the fp32 runs: three sigma stay below 0.5 %


def moved_by(losses: Sequence[float], shift: float) -> tuple[float, ...]:
    return tuple(loss + shift for loss in losses)


SOUND = GradientReading(
    loss_finite=True,
    activation_absmax=40.0,
    activation_module="layers.1.mlp",
    skipped_tries=0,
    gain=1.0002,
    relative_error=5e-5,
    cosine=0.99999999,
    worst_tensor="layers.0.attention.weight",
    worst_tensor_error=3e-4,
    underflow_fraction=0.0,
    underflow_norm=0.0,
    reference_norm=2.5,
    moved_fraction=0.99,
    applied_steps=STEPS,
    skipped_steps=0,
    losses=moved_by(FALLING, 0.01),
    reference_losses=FALLING,
    permuted_losses=tuple(moved_by(FALLING, shift) for shift in JITTER),
    sibling=None,
)
LEARNS_NOTHING = (6.0,) * STEPS


def of(results: Sequence[GateResult], gate: GateName) -> GateResult:
    (found,) = [result for result in results if result.gate == gate]
    return found


def result_of(
    gate: GateName, setup: Setup = FP32, thresholds: Thresholds = DEFAULT, **changes: Any
) -> GateResult:
    return of(judge(setup, replace(SOUND, **changes), thresholds), gate)


def why(setup: Setup, **changes: Any) -> GateResult:
    """What refuses a setup with a sound reading but for ``changes``."""
    found = refusal(judge(setup, replace(SOUND, **changes), DEFAULT))
    assert found is not None
    return found


@pytest.mark.parametrize("setup", [FP32, BF16, FP16], ids=["fp32", "bf16", "fp16"])
def test_a_sound_setup_passes_every_gate(setup: Setup) -> None:
    results = judge(setup, SOUND, DEFAULT)
    assert {result.status for result in results} == {"pass"}
    assert refusal(results) is None


ELSEWHERE = {"wire-error", "gradient-norm"}  # predicted for the real ranks; of scripts only


def test_only_gates_that_apply_are_judged() -> None:
    beside = replace(SOUND, sibling=Siblings(key=STAGE_2, gain=1.0, relative_error=0.0))
    common = {"finite-forward", "underflow", "gain", "relative-error", "cosine", "worst-tensor"}
    common |= {"weights-move", "loss-band"}
    assert {item.gate for item in judge(FP32, SOUND, DEFAULT)} == common
    assert {item.gate for item in judge(BF16, SOUND, DEFAULT)} == common | {"skipped-steps"}
    assert {item.gate for item in judge(FP16, beside, DEFAULT)} == set(GATES) - ELSEWHERE


# --- planted faults, each with the gate that is meant for it ---


def test_gradients_divided_twice_fail_the_gain() -> None:
    found = why(BF16, gain=0.5, relative_error=0.5, cosine=1.0, worst_tensor_error=0.5)
    assert found.gate == "gain"
    assert found.value == 0.5
    assert found.text == "the applied gradient is 0.5 times that of fp32, not within 1 +- 0.01"


def test_fp16_that_is_divided_by_a_scale_it_never_had_fails_the_gain() -> None:
    found = why(
        make_setup(precision="fp16", grad_comm_dtype="fp16", zero_stage=0),
        gain=2.0**-16,
        relative_error=1 - 2.0**-16,
        worst_tensor_error=1 - 2.0**-16,
        underflow_fraction=2e-4,
        underflow_norm=6e-5,
        losses=LEARNS_NOTHING,
    )
    assert found.gate == "gain"
    assert "1.526e-05 times" in found.text


def test_a_wrong_gain_is_named_even_where_some_gradients_vanish() -> None:
    found = why(FP16, gain=2.0**-16, underflow_norm=0.02, underflow_fraction=0.3)
    assert found.gate == "gain"


def test_a_sum_that_misses_one_rank_fails_the_gain() -> None:
    # Of two ranks' gradients at a cosine of 0.06, one over two: <g0 / 2, r> / <r, r> = 0.5.
    found = why(BF16, gain=0.5, relative_error=0.68, cosine=0.73, worst_tensor_error=0.7)
    assert found.gate == "gain"


def test_ranks_that_keep_their_own_gradients_fail_the_relative_error() -> None:
    # Each rank's part is its own, whose mean over the ranks may well have the right length.
    found = why(BF16, gain=1.004, relative_error=0.94, cosine=0.73, worst_tensor_error=1.1)
    assert found.gate == "relative-error"
    assert found.text == "the gradient's relative error against fp32 is 0.94, over 0.1"


def test_a_last_micro_batch_that_is_all_fails_the_gain() -> None:
    # g = g2 / 2 where r = (g1 + g2) / 2.
    found = why(BF16, gain=0.51, relative_error=0.7, cosine=0.72, worst_tensor_error=0.8)
    assert found.gate == "gain"


def test_activations_beyond_fp16_are_refused_with_their_module() -> None:
    found = why(FP16, activation_absmax=66_246.0, activation_module="decoder.wo")
    assert found.gate == "activation-headroom"
    assert found.value == pytest.approx(math.log2(65504 / 66246))
    assert "decoder.wo" in found.text
    assert "under 2 bits" in found.text


def test_a_loss_that_overflows_comes_before_all_that_it_spoils() -> None:
    nan = math.nan
    found = why(
        FP16,
        loss_finite=False,
        activation_absmax=66_246.0,
        activation_module="decoder.wo",
        gain=nan,
        relative_error=nan,
        cosine=nan,
        applied_steps=0,
        skipped_steps=STEPS,
        losses=(nan,) * STEPS,
    )
    assert found.gate == "finite-forward"
    assert found.text == (
        "the loss is not finite, and no loss scale can mend that; the largest activation in fp32 "
        "is 6.62e+04, in decoder.wo, over 65504, the largest number of fp16"
    )


def test_gradients_too_small_for_fp16_fail_the_underflow_although_the_gain_is_gone_too() -> None:
    found = why(
        FP16,
        gain=0.0,
        relative_error=1.0,
        cosine=0.0,
        worst_tensor_error=1.0,
        underflow_fraction=1.0,
        underflow_norm=1.0,
        moved_fraction=0.0,
        losses=LEARNS_NOTHING,
    )
    assert found.gate == "underflow"
    assert found.text == (
        "100% of the gradient's elements became zero; their part of its norm is 1, over 0.001"
    )


def test_half_of_a_gradient_that_vanishes_is_an_underflow_too() -> None:
    found = why(FP16, gain=1 - 0.3**2, underflow_norm=0.3, underflow_fraction=0.5, cosine=0.95)
    assert found.gate == "underflow"


def test_bf16_weights_without_a_master_do_not_move() -> None:
    found = why(BF16, moved_fraction=0.012, losses=moved_by(FALLING, 0.3))
    assert found.gate == "weights-move"
    assert found.text == (
        "an applied step changes 1.2% of the weights, under 50%: rounding loses it"
    )


@pytest.mark.parametrize("setup", [BF16, FP16], ids=["bf16", "fp16"])
def test_a_setup_that_skips_every_step_is_refused_for_that(setup: Setup) -> None:
    # No step was applied, so the measured gradient is zero altogether.
    found = why(
        setup,
        gain=0.0,
        relative_error=1.0,
        cosine=0.0,
        underflow_norm=1.0,
        underflow_fraction=1.0,
        applied_steps=0,
        skipped_steps=STEPS,
        moved_fraction=0.0,
    )
    assert found.gate == "skipped-steps"
    assert found.text == "all 48 steps skipped for overflow: the model never trains"


def test_a_race_in_the_reduction_is_named_with_the_setup_that_has_none() -> None:
    broken = Siblings(key=STAGE_2, gain=0.8, relative_error=0.3)
    result = result_of("same-gradient", BF16, relative_error=0.03, sibling=broken)
    assert result.status == "fail"
    assert STAGE_2 in result.text
    assert "gain is 0.8, not within 1 +- 0.01" in result.text


# --- the gates, one by one ---


@pytest.mark.parametrize("absmax", [math.inf, math.nan])
def test_an_activation_that_is_not_finite_in_fp32_fails_whatever_the_dtype(absmax: float) -> None:
    for setup in (FP32, BF16, FP16):
        found = why(setup, activation_absmax=absmax)
        assert found.gate == "finite-forward"
        assert found.text == "an output of layers.1.mlp is not finite, even in fp32"


@pytest.mark.parametrize(("absmax", "status"), [(16_376.0, "pass"), (16_400.0, "fail")])
def test_activations_need_two_bits_below_the_largest_of_fp16(absmax: float, status: str) -> None:
    assert result_of("activation-headroom", FP16, activation_absmax=absmax).status == status


def test_activations_of_zero_have_all_the_headroom() -> None:
    result = result_of("activation-headroom", FP16, activation_absmax=0.0)
    assert result.status == "pass"
    assert result.value == pytest.approx(40.0, abs=1e-3)


@pytest.mark.parametrize(
    ("gain", "status"),
    [(0.991, "pass"), (1.009, "pass"), (0.989, "fail"), (1.011, "fail"), (-1.0, "fail")],
)
def test_a_gain_is_within_one_per_cent_of_one(gain: float, status: str) -> None:
    assert result_of("gain", gain=gain).status == status


@pytest.mark.parametrize(("norm", "words"), [(0.0, "vanishes"), (math.nan, "is not finite")])
def test_a_reference_of_nothing_is_nothing_to_compare_with(norm: float, words: str) -> None:
    result = result_of("gain", gain=1.0, reference_norm=norm)
    assert (result.status, result.value) == ("fail", None)
    assert f"the gradient {words} in fp32 itself" in result.text


@pytest.mark.parametrize(
    ("precision", "wire", "warned"),
    [
        ("fp32", "fp32", 1e-4),
        ("tf32", "fp32", 1e-3),
        ("fp16", "fp32", 3e-3),
        ("fp32", "fp16", 3e-3),
        ("tf32", "fp16", 3e-3),
        ("bf16", "fp32", 2e-2),
        ("fp32", "bf16", 2e-2),
        ("fp16", "bf16", 2e-2),
    ],
)
def test_the_coarsest_dtype_sets_the_relative_error(
    precision: Precision, wire: WireDtype, warned: float
) -> None:
    setup = make_setup(precision=precision, grad_comm_dtype=wire)
    cases = {0.99: "pass", 1.01: "warn", 4.99: "warn", 5.01: "fail"}
    for times, status in cases.items():
        result = result_of("relative-error", setup, relative_error=times * warned)
        assert result.status == status
        assert result.limit == pytest.approx(5 * warned)


def test_a_warning_tells_both_levels() -> None:
    result = result_of("relative-error", BF16, relative_error=0.05)
    assert result.text == (
        "the gradient's relative error against fp32 is 0.05, over 0.02; refused over 0.1"
    )
    assert refusal([result]) is None


@pytest.mark.parametrize(("cosine", "status"), [(0.9991, "pass"), (0.9989, "fail")])
def test_a_cosine_is_within_a_thousandth_of_one(cosine: float, status: str) -> None:
    assert result_of("cosine", cosine=cosine).status == status


def test_a_cosine_may_be_rounded_above_one() -> None:
    result = result_of("cosine", cosine=1 + 1e-12)
    assert result.status == "pass"
    assert result.value == pytest.approx(1e-12, rel=1e-3)


def test_the_worst_tensor_is_named() -> None:
    found = why(BF16, worst_tensor="head.weight", worst_tensor_error=0.3)
    assert found.gate == "worst-tensor"
    assert found.text == (
        "the worst tensor is head.weight: the relative error of its gradient is 0.3, over 0.1"
    )


@pytest.mark.parametrize(
    ("fraction", "norm", "status"),
    [(0.02, 2e-5, "pass"), (0.06, 2e-5, "warn"), (0.02, 2e-3, "fail"), (0.6, 2e-3, "fail")],
)
def test_lost_norm_refuses_and_lost_elements_warn(
    fraction: float, norm: float, status: str
) -> None:
    result = result_of("underflow", FP16, underflow_fraction=fraction, underflow_norm=norm)
    assert result.status == status


@pytest.mark.parametrize(
    ("scale", "steps", "explained"),
    [
        (LossScale(), 48, 17),  # 16 halvings, and one more overflow for a hysteresis of 2
        (LossScale(hysteresis=1, minimum=0), 48, 16),
        (LossScale(initial_power=4, window=10, hysteresis=2), 48, 5 + 4 * 2),
    ],
)
def test_the_rule_of_the_loss_scaler_explains_skips(
    scale: LossScale, steps: int, explained: int
) -> None:
    setup = make_setup(precision="fp16", loss_scale=scale)
    assert explained_skips(setup, steps) == explained
    for skipped, status in ((explained, "pass"), (explained + 1, "warn")):
        result = result_of(
            "skipped-steps", setup, skipped_steps=skipped, applied_steps=steps - skipped
        )
        assert (result.status, result.limit) == (status, explained)


def test_bf16_has_no_reason_to_skip() -> None:
    result = result_of("skipped-steps", BF16, skipped_steps=1, applied_steps=STEPS - 1)
    assert result.status == "warn"
    assert result.text == "1 of 48 steps skipped for overflow; none should be"


def test_a_run_without_an_applied_step_moves_no_weights() -> None:
    found = why(FP32, applied_steps=0, skipped_steps=STEPS)
    assert found.gate == "weights-move"
    assert found.text == "no step of the training run was applied"


def test_half_of_the_weights_are_enough() -> None:
    assert result_of("weights-move", moved_fraction=0.5).status == "pass"


# --- siblings ---


@pytest.mark.parametrize(
    ("gain", "error", "status"),
    [(1.005, 0.01, "pass"), (1.005, 0.05, "warn"), (1.005, 0.2, "fail"), (1.02, 0.01, "fail")],
)
def test_siblings_keep_the_limits_of_gain_and_relative_error(
    gain: float, error: float, status: str
) -> None:
    sibling = Siblings(key=STAGE_2, gain=gain, relative_error=error)
    result = result_of("same-gradient", BF16, relative_error=0.03, sibling=sibling)
    assert result.status == status
    assert STAGE_2 in result.text


def test_a_setup_that_agrees_with_fp32_is_not_refused_for_a_broken_sibling() -> None:
    broken = Siblings(key="deepspeed.z0.fp16", gain=65536.0, relative_error=65535.0)
    results = judge(FP16, replace(SOUND, sibling=broken), DEFAULT)
    assert refusal(results) is None
    found = of(results, "same-gradient")
    assert found.status == "warn"
    assert found.text.endswith("not within 1 +- 0.01; this setup agrees with fp32")


# --- losses ---


def test_a_loss_within_half_a_per_cent_of_fp32_passes() -> None:
    end = sum(FALLING[-12:]) / 12
    for share, status in ((0.004, "pass"), (0.006, "fail"), (-0.006, "fail")):
        losses = moved_by(FALLING, share * end)
        result = result_of("loss-band", losses=losses)
        assert result.status == status
        assert result.value == pytest.approx(abs(share))
        assert result.limit == 0.005


def test_fp32_runs_that_differ_widen_the_band_to_three_sigma() -> None:
    # Means of the last quarters: 0, 1, 2, 3 above the reference; their deviation is 1.29.
    permuted = tuple(moved_by(FALLING, shift) for shift in (1.0, 2.0, 3.0))
    sigma = math.sqrt(5 / 3)
    end = sum(FALLING[-12:]) / 12
    for times, status in ((2.9, "pass"), (3.1, "fail")):
        losses = moved_by(FALLING, times * sigma)
        result = result_of("loss-band", losses=losses, permuted_losses=permuted)
        assert result.status == status
        assert result.limit == pytest.approx(3 * sigma / end)


def test_only_the_last_quarter_of_the_losses_counts() -> None:
    losses = (*moved_by(FALLING[:36], 5.0), *FALLING[36:])
    assert result_of("loss-band", losses=losses).value == 0.0


def test_of_a_very_short_run_four_losses_count() -> None:
    losses = (9.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0)
    reference = (1.0,) * 8
    result = result_of(
        "loss-band", losses=losses, reference_losses=reference, permuted_losses=(reference,) * 3
    )
    assert result.value == 0.0


def test_a_run_that_skipped_its_first_steps_is_compared_with_fp32_as_many_steps_earlier() -> None:
    steep = tuple(6.0 - 0.1 * step for step in range(STEPS))
    late = (6.0,) * 7 + steep[:-7]
    base = replace(SOUND, losses=late, reference_losses=steep, permuted_losses=(steep,) * 3)
    skipping = replace(base, skipped_steps=7, applied_steps=STEPS - 7)
    assert of(judge(FP16, skipping, DEFAULT), "loss-band").status == "pass"
    assert of(judge(FP16, base, DEFAULT), "loss-band").status == "fail"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_fails_even_in_an_early_step(value: float) -> None:
    found = why(BF16, losses=(value, *FALLING[1:]))
    assert found.gate == "loss-band"
    assert found.text == "the loss of the training run is not finite"


@pytest.mark.parametrize("field", ["reference_losses", "permuted_losses"])
def test_fp32_that_diverges_itself_is_said(field: str) -> None:
    broken = (*FALLING[:-1], math.nan)
    runs = broken if field == "reference_losses" else (broken, FALLING, FALLING)
    found = why(BF16, **{field: runs})
    assert found.gate == "loss-band"
    assert "of the fp32 runs themselves" in found.text


# --- thresholds ---


def test_every_gate_has_a_threshold_with_its_meaning_and_source() -> None:
    assert set(THRESHOLDS) == set(GATES)
    for gate, threshold in THRESHOLDS.items():
        assert threshold.gate == gate
        assert threshold.meaning
        assert threshold.source


def test_a_limit_of_the_users_is_taken_and_said() -> None:
    mine = DEFAULT.with_user({"gain": 0.1})
    result = result_of("gain", thresholds=mine, gain=1.05)
    assert (result.status, result.limit, result.changed) == ("pass", 0.1, True)
    assert not result_of("gain", gain=1.05).changed
    assert not result_of("cosine", thresholds=mine).changed


def test_the_default_written_out_is_no_change() -> None:
    assert not result_of("gain", thresholds=DEFAULT.with_user({"gain": 0.01})).changed


def test_a_limit_of_the_users_stands_for_every_dtype_and_warns_from_a_fifth() -> None:
    mine = DEFAULT.with_user({"relative-error": 0.05})
    for setup in (FP32, BF16):
        levels = [mine.bound("relative-error", setup).warn, 0.0101, 0.0499, 0.0501]
        results = [
            result_of("relative-error", setup, mine, relative_error=level) for level in levels
        ]
        assert [result.status for result in results] == ["pass", "warn", "warn", "fail"]


def test_siblings_follow_the_users_limits() -> None:
    sibling = Siblings(key=STAGE_2, gain=1.02, relative_error=0.01)
    mine = DEFAULT.with_user({"gain": 0.05})
    result = result_of("same-gradient", BF16, mine, sibling=sibling, relative_error=0.03)
    assert (result.status, result.changed) == ("pass", True)


def test_limits_add_up_and_the_defaults_stay_as_they_are() -> None:
    both = DEFAULT.with_user({"gain": 0.1}).with_user({"cosine": 0.2})
    assert (both.bound("gain", FP32).limit, both.bound("cosine", FP32).limit) == (0.1, 0.2)
    assert DEFAULT.bound("gain", FP32).limit == 0.01


@pytest.mark.parametrize(
    ("error", "status"), [(0.009, "pass"), (0.011, "warn"), (0.049, "warn"), (0.051, "fail")]
)
def test_a_predicted_error_of_the_wire_has_its_limits_here(error: float, status: str) -> None:
    bound = DEFAULT.bound("wire-error", BF16)
    result = compared("wire-error", error, bound, "the predicted error on 512 ranks is")
    assert result.status == status


def test_gates_without_a_number_cannot_be_changed() -> None:
    fixed = {"finite-forward", "skipped-steps", "same-gradient"}
    assert set(GATES) - set(NUMBERED) == fixed


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.012, "share", "1.2%"), (2.0, "bits", "2 bits"), (0.03124, "ratio", "0.0312")],
)
def test_numbers_are_shown_in_their_unit(value: float, unit: Any, text: str) -> None:
    assert show_number(value, unit) == text


# --- results ---


def test_results_are_plain_json() -> None:
    results = judge(FP16, replace(SOUND, gain=math.nan, activation_absmax=math.inf), DEFAULT)
    text = json.dumps([asdict(result) for result in results], allow_nan=False)
    first = json.loads(text)[0]
    assert first["gate"] == "finite-forward"
    assert set(first) == {"gate", "status", "value", "limit", "text", "source", "changed"}


def test_causes_come_before_symptoms() -> None:
    beside = replace(SOUND, sibling=Siblings(key=STAGE_2, gain=1.0, relative_error=0.0))
    order = [result.gate for result in judge(FP16, beside, DEFAULT)]
    expected = [gate for gate in GATES if gate not in ELSEWHERE]
    assert order == expected
    assert all(one != other for one, other in pairwise(order))


def test_the_first_failure_is_the_refusal_and_warnings_are_none() -> None:
    results = judge(
        BF16, replace(SOUND, relative_error=0.05, cosine=0.9, worst_tensor_error=0.5), DEFAULT
    )
    assert refusal(results) == of(results, "cosine")
