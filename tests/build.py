"""Small builders that the tests share."""

from __future__ import annotations

from typing import Any

from autotune.outcome import Collective, Measurement, Outcome, OutcomeKind, Phase, Probe
from autotune.setup import LossScale, Setup
from autotune.space import Context
from autotune.workload import Gpt, Workload

TINY_GPT = Gpt(
    layers=2, width=32, heads=2, kv_heads=1, vocab=64, sequence=16, mlp_ratio=2.0, style="llama"
)
TINY = Workload(model=TINY_GPT, micro_batch=2, gradient_accumulation=2)


def make_setup(**knobs: Any) -> Setup:
    defaults: dict[str, Any] = {
        "backend": "deepspeed",
        "precision": "fp32",
        "grad_comm_dtype": "fp32",
        "zero_stage": 1,
        "bucket_bytes": 25_000_000,
        "overlap_comm": None,
        "activation_checkpointing": False,
        "micro_batch": 2,
        "gradient_accumulation": 2,
        "loss_scale": None,
    }
    merged = {**defaults, **knobs}
    if merged["backend"] == "fsdp":
        merged |= {"bucket_bytes": None, "zero_stage": knobs.get("zero_stage", 3)}
    if merged["backend"] == "ddp":
        merged |= {"zero_stage": 0}
    if merged["precision"] == "fp16" and merged["loss_scale"] is None:
        deepspeed = merged["backend"] == "deepspeed"
        merged["loss_scale"] = LossScale() if deepspeed else LossScale(hysteresis=1, minimum=0)
    return Setup(**merged)


def make_context(**changes: Any) -> Context:
    defaults: dict[str, Any] = {
        "workload": TINY,
        "world_size": 2,
        "device": "cpu",
        "bf16": "native",
        "fp16": "native",
        "tf32": False,
    }
    return Context(**{**defaults, **changes})


def make_measurement(
    backward: float = 0.1,
    *,
    end_to_end: float = 0.5,
    steps: int = 4,
    skipped: int = 0,
    slowest: float | None = None,
    steady: bool = True,
) -> Measurement:
    """Equal steps; ``slowest`` replaces the last backward."""
    stalled = () if slowest is None else (slowest,)
    return Measurement(
        forward_seconds=(0.05,) * steps,
        backward_seconds=(*(backward,) * (steps - len(stalled)), *stalled),
        step_seconds=(0.02,) * steps,
        skipped_steps=skipped,
        tokens_per_step=1000,
        end_to_end_seconds=end_to_end,
        end_to_end_steps=steps,
        peak_memory_bytes=10**9,
        wire=(Collective(kind="all_reduce", dtype="fp32", calls=2, bytes=4000),),
        losses=(1.0,) * steps,
        warm_up_steps=4,
        steady=steady,
    )


def make_probe(
    number: int,
    setup: Setup | None = None,
    *,
    backward: float = 0.1,
    end_to_end: float = 0.5,
    launch: int = 0,
    baseline: bool = False,
    kind: OutcomeKind = "ok",
    phase: Phase = "search",
    block: int | None = None,
    round: int = 0,
    control: bool = False,
    others_busy: float | None = None,
    measurement: Measurement | None = None,
    saved_seconds: float = 0.0,
    throttled: tuple[str, ...] = (),
) -> Probe:
    """A probe; ``measurement`` replaces the one that ``backward`` and ``end_to_end`` describe."""
    ok = kind == "ok"
    measured = measurement or make_measurement(backward, end_to_end=end_to_end)
    return Probe(
        number=number,
        launch=launch,
        baseline=baseline,
        setup=setup or make_setup(),
        rendered="{}",
        outcome=Outcome(
            kind=kind,
            reason=None if ok else "because",
            measurement=measured if ok else measurement,
            seconds={"timed": 1.0},
            saved_seconds=saved_seconds,
            throttled=throttled,
        ),
        wall_seconds=2.0,
        finished_at="2026-01-01T00:00:00+00:00",
        phase=phase,
        block=block,
        round=round,
        control=control,
        others_busy=others_busy,
    )
