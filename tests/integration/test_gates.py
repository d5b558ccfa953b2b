"""Setups that do not train, each with a fault of its own, at the gates: two gloo ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.backends import backend_of
from autotune.launch import Launch
from autotune.numerics.gates import GateResult, judge, refusal
from autotune.numerics.thresholds import Thresholds
from autotune.outcome import Outcome
from autotune.readings import GradientReading
from autotune.render import render
from autotune.request import ReadingRequest
from autotune.setup import LossScale, Setup
from autotune.workload import PythonFactory, Workload
from tests.build import TINY, make_setup
from tests.conftest import WORKLOADS, marked

STEPS = 12


def planted(**args: Any) -> Workload:
    model = PythonFactory(path="planted:factory", args=args, folder=str(WORKLOADS))
    return Workload(model=model, micro_batch=2, gradient_accumulation=2)


def rendered(setup: Setup) -> str:
    backend = backend_of(setup)
    return render(backend.template, backend.variables(setup), None)


def read(
    launch: Launch,
    setup: Setup,
    workload: Workload,
    learning_rate: float = 1e-3,
    text: str | None = None,
) -> GradientReading:
    request = ReadingRequest(
        ask="gradient",
        setup=setup,
        rendered=text or rendered(setup),
        workload=workload,
        steps=STEPS,
        learning_rate=learning_rate,
    )
    reading = launch.read(request, 60)
    assert not isinstance(reading, Outcome), (reading.reason, reading.log)
    assert isinstance(reading, GradientReading)
    return reading


def refused_by(
    launch: Launch,
    setup: Setup,
    workload: Workload,
    learning_rate: float = 1e-3,
    text: str | None = None,
) -> GateResult | None:
    reading = read(launch, setup, workload, learning_rate, text)
    return refusal(judge(setup, reading, Thresholds.default()))


SOUND = [
    make_setup(precision="fp32"),
    make_setup(precision="fp32", grad_comm_dtype="bf16", zero_stage=0),
    make_setup(precision="bf16", grad_comm_dtype="bf16"),
    make_setup(precision="bf16", zero_stage=2),
    make_setup(precision="bf16", zero_stage=3),
    make_setup(precision="fp16", grad_comm_dtype="fp16"),
    make_setup(precision="fp16", grad_comm_dtype="fp16", zero_stage=3),
    make_setup(backend="fsdp", precision="bf16", grad_comm_dtype="bf16"),
    make_setup(backend="fsdp", precision="fp16", zero_stage=2),
]


@pytest.mark.parametrize("setup", [marked(setup) for setup in SOUND])
def test_a_sound_setup_passes_every_gate(warm: Launch, setup: Setup) -> None:
    reading = read(warm, setup, TINY)
    failed = refusal(judge(setup, reading, Thresholds.default()))
    assert failed is None, failed
    assert abs(reading.gain - 1) < 0.01
    assert reading.applied_steps == STEPS
    assert len(reading.losses) == len(reading.reference_losses) == STEPS
    assert reading.losses[-1] < reading.losses[0]


def test_fp32_applies_the_gradient_of_the_reference_to_the_last_bits(warm: Launch) -> None:
    reading = read(warm, make_setup(precision="fp32"), TINY)
    assert reading.relative_error < 1e-5
    assert reading.losses == pytest.approx(reading.reference_losses, rel=1e-5)


@pytest.mark.fp16
def test_fp16_with_stage_0_of_deepspeed_never_scales_the_loss_and_is_refused_for_its_gain(
    warm: Launch,
) -> None:
    stage_0 = make_setup(precision="fp16", grad_comm_dtype="fp16", zero_stage=0)
    failed = refused_by(warm, stage_0, TINY)
    assert failed is not None
    assert failed.gate == "gain"
    assert failed.value == pytest.approx(1, abs=1e-3)  # only 1 / 65536 of the gradient is applied
    assert refused_by(warm, replace(stage_0, zero_stage=1), TINY) is None


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(
    "fault", ["divided_twice", "one_rank_not_reduced", "last_micro_batch_only"]
)
def test_a_gradient_that_is_scaled_or_partly_missing_is_refused_for_its_gain(
    warm: Launch, fault: str, stage: int
) -> None:
    setup = make_setup(precision="fp32", zero_stage=stage)
    assert refused_by(warm, setup, planted()) is None
    failed = refused_by(warm, setup, planted(fault=fault))
    assert failed is not None
    assert failed.gate == "gain"


@pytest.mark.fp16
def test_activations_above_the_largest_number_of_fp16_are_refused_with_the_modules_name(
    warm: Launch,
) -> None:
    loud = planted(factor=1e6)
    failed = refused_by(warm, make_setup(precision="fp16", grad_comm_dtype="fp16"), loud)
    assert failed is not None
    assert failed.gate in ("finite-forward", "activation-headroom")
    assert "loud" in failed.text
    assert refused_by(warm, make_setup(precision="bf16", grad_comm_dtype="bf16"), loud) is None


@pytest.mark.fp16
def test_gradients_that_vanish_in_fp16_are_refused_for_underflow(warm: Launch) -> None:
    faint = planted(loss_factor=1e-7)
    low = LossScale(initial_power=4)
    setup = make_setup(precision="fp16", grad_comm_dtype="fp16", loss_scale=low)
    failed = refused_by(warm, setup, faint)
    assert failed is not None
    assert failed.gate == "underflow"
    enough = replace(setup, loss_scale=LossScale(initial_power=28))
    assert refused_by(warm, enough, faint) is None


def test_bf16_weights_without_a_master_that_do_not_move_are_refused(warm: Launch) -> None:
    setup = make_setup(backend="fsdp", precision="bf16", grad_comm_dtype="bf16")
    find = "    units = find_layers(model, layers)\n"
    bare = rendered(setup).replace(find, f"    model.to(torch.bfloat16)\n{find}")
    assert bare != rendered(setup)
    failed = refused_by(warm, setup, planted(), learning_rate=1e-5, text=bare)
    assert failed is not None
    assert failed.gate == "weights-move"
    assert refused_by(warm, setup, planted(), learning_rate=1e-5) is None


def test_stages_are_compared_with_each_other(warm: Launch) -> None:
    first = read(warm, make_setup(precision="bf16", bucket_bytes=10_000_000), TINY)
    second = read(warm, make_setup(precision="bf16", bucket_bytes=10_000_000, zero_stage=3), TINY)
    assert second.sibling is not None
    assert second.sibling.gain == pytest.approx(1, abs=0.01)
    assert first.reference_losses == second.reference_losses
