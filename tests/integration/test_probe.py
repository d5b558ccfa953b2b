"""The real engines on two gloo ranks."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from autotune.launch import Launch, LocalLauncher, Machine
from autotune.launch.describe import worker_environment
from autotune.outcome import Measurement, Outcome
from autotune.request import Measure
from autotune.setup import LossScale, Setup
from autotune.workload import Gpt, Workload
from tests.build import TINY_GPT, make_setup
from tests.conftest import hostile, marked, request_for

GPT2 = Workload(
    model=replace(TINY_GPT, style="gpt2", kv_heads=2), micro_batch=2, gradient_accumulation=2
)
SMALL = Workload(
    model=Gpt(
        layers=4,
        width=256,
        heads=4,
        kv_heads=4,
        vocab=2048,
        sequence=128,
        mlp_ratio=8 / 3,
        style="llama",
    ),
    micro_batch=4,
    gradient_accumulation=1,
)


def bare(machine: Machine) -> bool:
    """Whether it has no fp16 kernels, so that DeepSpeed refuses fp16."""
    return bool(machine.facts["fp16"] == "none")


def measured(outcome: Outcome) -> Measurement:
    assert outcome.kind == "ok", (outcome.reason, outcome.log)
    assert outcome.measurement is not None
    return outcome.measurement


SETUPS = [
    make_setup(backend="deepspeed", zero_stage=stage, precision=precision, grad_comm_dtype=wire)
    for stage, precision, wire in itertools.product(
        (0, 1, 2, 3), ("fp32", "bf16", "fp16"), ("fp32", "bf16")
    )
] + [
    make_setup(backend="fsdp", zero_stage=stage, precision=precision, grad_comm_dtype=wire)
    for stage, precision, wire in itertools.product(
        (2, 3), ("fp32", "bf16", "fp16"), ("fp32", "bf16", "fp16")
    )
]


@pytest.mark.parametrize("setup", [marked(setup) for setup in SETUPS])
def test_gradients_cross_the_wire_in_the_dtype_that_was_asked_for(
    warm: Launch, setup: Setup
) -> None:
    if setup.zero_stage == 0:
        setup = replace(setup, bucket_bytes=None)
    found = measured(warm.probe(request_for(setup), 60))
    assert {item.dtype for item in found.wire} == {setup.grad_comm_dtype}
    reduces_every_micro_batch = setup.zero_stage >= 2
    parameters = 64 * 32 * 2 + 2 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64 + 2 * 32) + 32
    times = setup.gradient_accumulation if reduces_every_micro_batch else 1
    bytes_each = 4 if setup.grad_comm_dtype == "fp32" else 2
    total = sum(item.bytes for item in found.wire)
    assert total == pytest.approx(times * parameters * bytes_each, rel=0.02)
    assert found.tokens_per_step == 2 * 2 * 2 * 16
    assert len(found.backward_seconds) == 2
    assert found.peak_memory_bytes > 50e6


@pytest.mark.parametrize("backend", ["deepspeed", "fsdp"])
def test_the_gpt2_style_trains_with_tied_embeddings(warm: Launch, backend: str) -> None:
    setup = make_setup(backend=backend, precision="bf16", grad_comm_dtype="bf16", zero_stage=3)
    found = measured(warm.probe(request_for(setup, workload=GPT2), 60))
    assert found.losses[0] == pytest.approx(math.log(64), rel=0.1)  # nothing is learnt yet


@pytest.mark.parametrize("backend", ["deepspeed", "fsdp"])
def test_activation_checkpointing_computes_the_forward_again_in_the_backward(
    warm: Launch, backend: str
) -> None:
    setup = make_setup(backend=backend)
    calls = [
        measured(warm.probe(request_for(asked, workload=hostile(factory="counting")), 60))
        for asked in (setup, replace(setup, activation_checkpointing=True))
    ]
    plain, checkpointed = (found.tokens_per_step for found in calls)
    assert checkpointed == 2 * plain


def test_a_configuration_that_ignores_the_wire_dtype_is_inert_and_says_what_was_on_the_wire(
    warm: Launch,
) -> None:
    asked = make_setup(backend="fsdp", precision="bf16", grad_comm_dtype="bf16")
    honest = request_for(asked).rendered
    # The policy claims bf16, the sharding uses another one.
    liar = honest.replace(
        "mp_policy=policy()", "mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)"
    )
    assert liar != honest
    outcome = warm.probe(request_for(asked, rendered=liar), 60)
    assert outcome.kind == "inert"
    assert outcome.reason is not None
    assert "asks for bf16 gradients; on the wire were" in outcome.reason
    assert "bytes of fp32 by reduce_scatter" in outcome.reason


def test_gradients_that_are_not_reduced_are_inert(warm: Launch) -> None:
    asked = make_setup(backend="fsdp", precision="fp32", grad_comm_dtype="fp32")
    honest = request_for(asked).rendered
    liar = honest.replace(
        "    return model\n", "    model.set_requires_gradient_sync(False)\n    return model\n", 1
    )
    outcome = warm.probe(request_for(asked, rendered=liar), 60)
    assert outcome.kind == "inert"
    assert outcome.reason is not None
    assert outcome.reason.startswith("Only 0 of ")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (('"stage": 2', '"stage": 1'), "zero_optimization.stage"),
        (('"communication_data_type": "bf16"', '"communication_data_type": "fp32"'), "communica"),
        (('"overlap_comm": true', '"overlap_comm": false'), "zero_optimization.overlap_comm"),
    ],
)
def test_deepspeed_must_read_out_of_the_text_what_the_setup_says(
    warm: Launch, change: tuple[str, str], field: str
) -> None:
    setup = make_setup(zero_stage=2, precision="bf16", grad_comm_dtype="bf16", overlap_comm=True)
    text = request_for(setup).rendered
    assert change[0] in text
    outcome = warm.probe(request_for(setup, rendered=text.replace(*change)), 60)
    assert outcome.kind == "invalid"
    assert outcome.reason is not None
    assert field in outcome.reason


@pytest.mark.fp16
@pytest.mark.parametrize("backend", ["deepspeed", "fsdp"])
def test_skipped_steps_are_counted_and_never_as_speed(warm: Launch, backend: str) -> None:
    # Gradients of a loss around 4 overflow at 2^22, since fp16 ends at 65504.
    floor = 1 if backend == "deepspeed" else 0
    scale = LossScale(initial_power=22, hysteresis=1, minimum=floor)
    setup = make_setup(backend=backend, precision="fp16", grad_comm_dtype="fp32", loss_scale=scale)
    cold = Measure(warm_up_steps=1, warm_up_cap=1, timed_steps=12, end_to_end_steps=1)
    found = measured(warm.probe(request_for(setup, measure=cold), 60))
    assert 0 < found.skipped_steps < 12
    applied = 12 - found.skipped_steps
    assert found.backward_tokens_per_second == pytest.approx(
        applied * found.tokens_per_step / sum(found.backward_seconds)
    )


@pytest.mark.fp16
def test_a_run_of_nothing_but_skipped_steps_is_unsafe(warm: Launch) -> None:
    scale = LossScale(initial_power=32, hysteresis=1)
    setup = make_setup(precision="fp16", grad_comm_dtype="fp16", loss_scale=scale)
    outcome = warm.probe(request_for(setup), 60)
    assert outcome.kind == "unsafe"
    assert outcome.reason == "Every timed step was skipped for overflow."


@pytest.mark.parametrize("backend", ["deepspeed", "fsdp"])
def test_a_users_factory_with_frozen_parameters_trains(warm: Launch, backend: str) -> None:
    setup = make_setup(backend=backend, precision="bf16", grad_comm_dtype="bf16")
    found = measured(warm.probe(request_for(setup, workload=hostile(factory="frozen")), 60))
    assert found.tokens_per_step == 2 * 2 * 2


def test_every_backend_and_stage_trains_the_same_weights_on_the_same_batches(
    warm: Launch,
) -> None:
    setups = [make_setup(zero_stage=stage) for stage in (1, 2, 3)]
    setups += [make_setup(backend="fsdp", zero_stage=stage) for stage in (2, 3)]
    losses = [measured(warm.probe(request_for(setup), 60)).losses for setup in setups]
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_forty_probes_of_changing_setups_leave_memory_bounded(
    machine: Machine, tmp_path: Path
) -> None:
    setups = [
        replace(setup, micro_batch=4, gradient_accumulation=1)
        for setup in SETUPS
        if setup.zero_stage > 0 and not (setup.precision == "fp16" and bare(machine))
    ]
    launch = LocalLauncher(2, worker_environment(machine, 2), tmp_path).start(0)
    resident = []
    try:
        for setup in itertools.islice(itertools.cycle(setups), 40):
            outcome = launch.probe(request_for(setup, workload=SMALL), 120)
            measured(outcome)
            resident.append(outcome.resident_bytes)
    finally:
        launch.stop()
    assert max(resident[20:]) < 1.25 * max(resident[:20])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_setup_takes_as_long_in_a_warm_launch_as_in_a_fresh_one(
    machine: Machine, tmp_path: Path
) -> None:
    setup = make_setup(
        precision="bf16", grad_comm_dtype="bf16", micro_batch=4, gradient_accumulation=1
    )
    others = [
        make_setup(backend=backend, zero_stage=3, micro_batch=4, gradient_accumulation=1)
        for backend in ("deepspeed", "fsdp")
    ]
    timed = Measure(warm_up_steps=4, warm_up_cap=8, timed_steps=10, end_to_end_steps=1)
    launcher = LocalLauncher(2, worker_environment(machine, 2), tmp_path)
    first: list[float] = []
    late: list[float] = []
    for number in range(3):
        launch = launcher.start(number)
        try:
            for taken in (first, late):
                found = launch.probe(request_for(setup, workload=SMALL, measure=timed), 120)
                taken.append(median(measured(found).backward_seconds))
                for other in others * 2:
                    measured(launch.probe(request_for(other, workload=SMALL), 120))
        finally:
            launch.stop()
    assert median(late) / median(first) == pytest.approx(1.0, abs=0.2)
