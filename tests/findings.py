"""Made-up findings of a run, one of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.decide.exposure import exposed_communication, justification
from autotune.numerics.findings import (
    Communication,
    Examined,
    Finding,
    Missing,
    ScaleChoice,
    WireErrors,
)
from autotune.numerics.names import (
    communication_name,
    gates_name,
    scale_name,
    trace_name,
    wires_name,
)
from autotune.numerics.policy import PolicyScore
from autotune.numerics.reduction import Prediction
from autotune.scales import DEFAULTS
from autotune.setup import LossScale, Setup
from tests.build import make_setup
from tests.readings import make_exposure, make_gradient_reading, make_trace
from tests.records import BASELINE, BF16, BF16_FP32_WIRE

CHOSEN = LossScale(initial_power=12)
FP16 = make_setup(precision="fp16", grad_comm_dtype="fp16", loss_scale=CHOSEN)
STEPS, RANKS = 10_000, 512
TARGET: Mapping[str, Any] = {
    "world_size": RANKS,
    "steps": STEPS,
    "learning_rate": 3e-4,
    "assumed": ["steps", "learning_rate"],
}


def make_communication(exposed: float = 0.3, *, closed: bool = False) -> Communication:
    found = exposed_communication(make_exposure(exposed))
    assert found is not None
    return Communication(
        setup=BF16_FP32_WIRE.key,
        backward_seconds=found.backward_seconds,
        exposed_seconds=found.exposed_seconds,
        interval=found.interval,
        gain_bound=found.gain_bound,
        closed=closed,
        text="No more than noise." if closed else justification(found),
    )


def make_score(policy: LossScale, useful: float) -> PolicyScore:
    return PolicyScore(
        policy=policy,
        useful_step_fraction=useful,
        interval=(useful - 1e-4, useful),
        stress_useful_step_fraction=useful - 0.01,
        lost_norm=1e-5,
        headroom_bits=14 - policy.initial_power,
        skipped_share=1e-3,
        died=False,
    )


def make_wires(ring: float = 0.12) -> WireErrors:
    tree = min(ring, 0.0028)
    bf16 = Prediction("bf16", RANKS, ring=ring, tree=tree, fp32_accumulate=0.0017)
    fp32 = Prediction("fp32", RANKS, ring=1e-7, tree=1e-7, fp32_accumulate=1e-7)
    return WireErrors(micro_batch=2, micro_batches=16, predictions=(bf16, fp32))


def examined(setup: Setup, **changes: Any) -> dict[str, Finding]:
    """The setup at the gates, with a reading that passes but for ``changes``."""
    if setup.precision == "fp32" and setup.grad_comm_dtype == "fp32":
        changes = {"relative_error": 1e-7, "worst_tensor_error": 1e-6, "gain": 1.0, **changes}
    reading = make_gradient_reading(**changes)
    return {gates_name(setup): Examined(setup=setup.key, reading=reading)}


def make_findings(**more: Finding) -> dict[str, Finding]:
    """Of a sweep over fp32, bf16 and fp16 with a target of 512 ranks."""
    choice = ScaleChoice(
        scaler="deepspeed",
        micro_batch=FP16.micro_batch,
        steps=STEPS,
        tried=48,
        chosen=make_score(CHOSEN, 0.9981),
        usual=make_score(DEFAULTS["deepspeed"], 0.9976),
        text="deepspeed: 2^12 keeps the most steps.",
    )
    return {
        communication_name(BASELINE): make_communication(),
        wires_name(BASELINE, RANKS): make_wires(0.012),
        trace_name(FP16): make_trace(),
        scale_name(FP16, STEPS): choice,
        **examined(BASELINE),
        **examined(BF16),
        "communication fsdp": Missing(reason="crash: because"),
        **more,
    }
