"""Real fp16 training on two ranks skips as often as the replay of its trace said."""

from __future__ import annotations

import pytest

from autotune.backends import backend_of
from autotune.launch import Launch
from autotune.numerics.policy import Limits, choose, evaluate, expected_skips
from autotune.outcome import Measurement, Outcome
from autotune.readings import ScaleTrace
from autotune.render import render
from autotune.request import Measure, ReadingRequest
from autotune.scales import DEFAULTS, all_scales
from autotune.setup import LossScale, Setup, scaler_of
from autotune.workload import PythonFactory, Workload
from tests.build import make_setup
from tests.conftest import WORKLOADS, request_for

pytestmark = pytest.mark.fp16

STEPS = 300
LOUD = Workload(
    model=PythonFactory(path="planted:factory", args={"loss_factor": 512.0}, folder=str(WORKLOADS)),
    micro_batch=2,
    gradient_accumulation=1,
)
"""Gradients so large that the usual first scale overflows."""


def trace_of(launch: Launch, setup: Setup) -> ScaleTrace:
    backend = backend_of(setup)
    request = ReadingRequest(
        ask="trace",
        setup=setup,
        rendered=render(backend.template, backend.variables(setup), None),
        workload=LOUD,
        steps=STEPS,
        learning_rate=1e-4,
    )
    trace = launch.read(request, 120)
    assert isinstance(trace, ScaleTrace), trace
    return trace


def trained(launch: Launch, setup: Setup) -> Measurement:
    """All steps of one probe: the first, one of warm-up, and the timed ones."""
    measure = Measure(warm_up_steps=1, warm_up_cap=1, timed_steps=STEPS - 3, end_to_end_steps=1)
    outcome = launch.probe(request_for(setup, workload=LOUD, measure=measure), 120)
    assert isinstance(outcome, Outcome)
    assert outcome.kind == "ok", outcome.reason
    assert outcome.measurement is not None
    assert outcome.measurement.trained_steps == STEPS
    return outcome.measurement


FP16 = {"precision": "fp16", "grad_comm_dtype": "fp16", "gradient_accumulation": 1}


@pytest.mark.parametrize(
    "setup",
    [
        make_setup(**FP16, zero_stage=1, loss_scale=LossScale(window=60)),
        make_setup(**FP16, zero_stage=3, loss_scale=LossScale(window=60)),
        make_setup(
            **FP16, backend="fsdp", loss_scale=LossScale(window=60, hysteresis=1, minimum=0)
        ),
    ],
    ids=lambda setup: setup.key,
)
def test_a_real_run_skips_as_often_as_the_replay_said(warm: Launch, setup: Setup) -> None:
    scaler = scaler_of(setup.backend, setup.zero_stage)
    assert setup.loss_scale is not None
    trace = trace_of(warm, setup)
    expected = expected_skips(scaler, setup.loss_scale, trace, steps=STEPS)
    skipped = trained(warm, setup).trained_skips
    assert skipped >= 5  # at the start alone
    assert expected.low <= skipped <= expected.high


def test_the_chosen_policy_skips_less_than_the_usual_one_that_skips_at_the_start(
    warm: Launch,
) -> None:
    usual = make_setup(**FP16, zero_stage=1)
    trace = trace_of(warm, usual)
    scores = evaluate("deepspeed", all_scales({}, "deepspeed"), trace, STEPS)
    chosen = choose(scores, DEFAULTS["deepspeed"], Limits())
    assert chosen is not None
    assert usual.loss_scale == DEFAULTS["deepspeed"]
    before = trained(warm, usual).trained_skips
    after = trained(warm, make_setup(**FP16, zero_stage=1, loss_scale=chosen.policy)).trained_skips
    assert before >= 5
    assert after < before
