"""Traces, samples and exposed communication of real engines on two gloo ranks."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from autotune.backends import backend_of
from autotune.decide.exposure import closes, exposed_communication
from autotune.launch import Launch, LocalLauncher, Machine
from autotune.launch.describe import worker_environment
from autotune.numerics.reduction import decode
from autotune.outcome import Outcome
from autotune.readings import LEAST_POWER, Exposure, GradientSample, Reading, ScaleTrace
from autotune.render import render
from autotune.request import Ask, ReadingRequest
from autotune.setup import Setup
from autotune.workload import Gpt, PythonFactory, Workload
from tests.build import TINY, make_setup
from tests.conftest import WORKLOADS

FP16 = make_setup(precision="fp16", grad_comm_dtype="fp16")


def planted(**args: object) -> Workload:
    model = PythonFactory(path="planted:factory", args=args, folder=str(WORKLOADS))
    return Workload(model=model, micro_batch=2, gradient_accumulation=2)


def ask(launch: Launch, what: Ask, setup: Setup, workload: Workload, steps: int) -> Reading:
    backend = backend_of(setup)
    request = ReadingRequest(
        ask=what,
        setup=setup,
        rendered=render(backend.template, backend.variables(setup), None),
        workload=workload,
        steps=steps,
        learning_rate=1e-3,
    )
    reading = launch.read(request, 60)
    assert not isinstance(reading, Outcome), (reading.reason, reading.log)
    return reading


def trace_of(launch: Launch, workload: Workload, steps: int = 6) -> ScaleTrace:
    trace = ask(launch, "trace", FP16, workload, steps)
    assert isinstance(trace, ScaleTrace)
    return trace


def test_a_loss_that_is_two_bits_larger_leaves_two_bits_less_for_its_scale(warm: Launch) -> None:
    plain = trace_of(warm, planted(), steps=1)
    louder = trace_of(warm, planted(loss_factor=4.0), steps=1)
    assert louder.finite_powers[0] == plain.finite_powers[0] - 2
    assert louder.absmax_log2[0] == pytest.approx(plain.absmax_log2[0] + 2, abs=0.01)


def test_the_largest_finite_scale_fits_the_largest_gradient(warm: Launch) -> None:
    trace = trace_of(warm, TINY)
    assert len(trace.finite_powers) == 6
    for power, absmax in zip(trace.finite_powers, trace.absmax_log2, strict=True):
        # Gradients of activations may overflow first, those of the weights never by more.
        assert power + absmax < 16
        assert power + absmax > 8


def test_a_trace_counts_every_gradient_element_of_every_step(warm: Launch) -> None:
    trace = trace_of(warm, planted(), steps=3)
    elements = 2 * (32 * 32 + 32)
    assert 0.9 * 3 * elements < sum(trace.counts) <= 3 * elements
    assert sum(trace.squares) > 0


def test_a_forward_pass_that_overflows_has_no_finite_scale(warm: Launch) -> None:
    trace = trace_of(warm, planted(factor=1e6), steps=2)
    assert set(trace.finite_powers) == {LEAST_POWER - 1}


def test_a_sample_holds_gradients_of_single_micro_batches_as_autograd_gives_them(
    warm: Launch,
) -> None:
    sample = ask(warm, "sample", FP16, planted(), 8)
    assert isinstance(sample, GradientSample)
    assert sample.micro_batches == 8
    gradients = decode(sample)
    assert gradients.shape == (8, sample.elements)
    # Rows of one rank and of the other are of other batches; none repeats.
    assert len({row.tobytes() for row in gradients}) == 8
    again = ask(warm, "sample", FP16, planted(), 8)
    assert isinstance(again, GradientSample)
    assert np.array_equal(decode(again), gradients)


COMPUTE_BOUND = Workload(
    model=Gpt(
        layers=2,
        width=32,
        heads=2,
        kv_heads=2,
        vocab=16,
        sequence=512,
        mlp_ratio=2.0,
        style="llama",
    ),
    micro_batch=4,
    gradient_accumulation=1,
)
"""8,000 weights on 2,000 tokens."""
COMMUNICATION_BOUND = replace(
    COMPUTE_BOUND,
    model=Gpt(
        layers=2,
        width=512,
        heads=4,
        kv_heads=4,
        vocab=2048,
        sequence=8,
        mlp_ratio=8 / 3,
        style="llama",
    ),
    micro_batch=1,
)
"""Eight million weights on 8 tokens."""


@pytest.mark.parametrize(
    "setup",
    [
        make_setup(precision="fp32", micro_batch=4, gradient_accumulation=1, zero_stage=1),
        make_setup(backend="fsdp", precision="fp32", micro_batch=4, gradient_accumulation=1),
    ],
    ids=lambda setup: setup.key,
)
def test_communication_is_exposed_where_weights_are_many_and_tokens_few(
    warm: Launch, setup: Setup
) -> None:
    few = ask(warm, "exposure", setup, COMPUTE_BOUND, 12)
    many = ask(warm, "exposure", replace(setup, micro_batch=1), COMMUNICATION_BOUND, 12)
    assert isinstance(few, Exposure)
    assert isinstance(many, Exposure)
    quiet, loud = exposed_communication(few), exposed_communication(many)
    assert quiet is not None
    assert loud is not None
    assert loud.share > quiet.share
    assert loud.share > 0.2
    assert closes(loud, 0.01) is None


def test_stage_2_of_deepspeed_always_reduces_and_leaves_the_rest_to_one_rank(
    warm: Launch, machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    setup = make_setup(zero_stage=2, micro_batch=1, gradient_accumulation=1)
    synced = ask(warm, "exposure", setup, COMMUNICATION_BOUND, 6)
    assert isinstance(synced, Exposure)
    assert synced.unsynced_seconds == ()
    launcher = LocalLauncher(2, worker_environment(machine, 2), tmp_path_factory.mktemp("alone"))
    alone = launcher.start(0, alone=True)
    try:
        single = ask(alone, "exposure", setup, COMMUNICATION_BOUND, 6)
    finally:
        alone.stop()
    assert isinstance(single, Exposure)
    assert fmean(single.synced_seconds) < fmean(synced.synced_seconds)
