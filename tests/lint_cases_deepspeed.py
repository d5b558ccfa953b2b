"""For every rule about DeepSpeed a file that it finds, and its twin that it does not."""

from __future__ import annotations

from collections.abc import Mapping

from tests.lint_case import BATCH, OLD, WIRE, Case, deepspeed, fp16, zero

DEEPSPEED: Mapping[str, tuple[Case, ...]] = {
    "ds-fp16-stage-0": (
        deepspeed(bad=fp16(), good={**fp16(), **zero(1)}, line=2),
        deepspeed(bad=fp16(), good={"bf16": {"enabled": True}}, line=2, versions={}),
        Case(
            "accelerate",
            "mixed_precision: fp16\ndistributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 0}",
            "mixed_precision: bf16\ndistributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 0}",
            1,
        ),
    ),
    "ds-bf16-overflow-unchecked": (
        deepspeed(
            bad={"bf16": {"enabled": True, "check_grad_overflow": False}, **zero(2)},
            good={"bf16": {"enabled": True, "check_grad_overflow": False}, **zero(3)},
            line=2,
        ),
    ),
    "ds-bf16-overflow-by-version": (
        deepspeed(
            bad={"bf16": {"enabled": True}, **zero(2)},
            good={"bf16": {"enabled": True, "check_grad_overflow": True}, **zero(2)},
            line=2,
        ),
    ),
    "ds-autocast-fp16-zero": (
        deepspeed(
            bad={"torch_autocast": {"enabled": True, "dtype": "float16"}, **zero(1)},
            good={"torch_autocast": {"enabled": True, "dtype": "bfloat16"}, **zero(1)},
            line=2,
        ),
    ),
    "ds-wire-dtype-by-version": (
        deepspeed(
            bad={"bf16": {"enabled": True}, **zero(1)},
            good={"bf16": {"enabled": True}, **zero(1), **WIRE},
        ),
        deepspeed(bad={**BATCH, **zero(1)}, good={**BATCH, **fp16(), **zero(1)}),
    ),
    "ds-wire-dtype-under-autocast": (
        deepspeed(
            bad={**WIRE, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}, **zero(1)},
            good={**WIRE, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
            line=2,
        ),
    ),
    "ds-fp16-sum-before-divide": (
        deepspeed(
            bad={**fp16(), **zero(1, reduce_scatter=False)}, good={**fp16(), **zero(1)}, line=2
        ),
        deepspeed(
            bad={"communication_data_type": "fp16"},
            good={"communication_data_type": "fp16", "prescale_gradients": True},
            line=2,
        ),
    ),
    "ds-overlap-race": (
        deepspeed(
            bad=zero(2, overlap_comm=True), good=zero(2, overlap_comm=False), line=2, versions=OLD
        ),
        deepspeed(
            bad=zero(1, overlap_comm=True),
            good=zero(3, overlap_comm=True),
            line=2,
            versions={"deepspeed": "0.19.2"},
        ),
    ),
    "ds-quantized-gradients": (
        deepspeed(
            bad=zero(3, zero_quantized_gradients=True),
            good=zero(3, zero_quantized_gradients=False),
            line=2,
        ),
    ),
    "ds-static-loss-scale": (deepspeed(bad=fp16(loss_scale=128), good=fp16(loss_scale=0), line=2),),
    "ds-hysteresis-stage-0": (
        deepspeed(bad=fp16(hysteresis=2), good={**fp16(hysteresis=2), **zero(1)}, line=2),
    ),
    "ds-hysteresis-zero": (deepspeed(bad=fp16(hysteresis=0), good=fp16(hysteresis=1), line=2),),
    "ds-consecutive-hysteresis": (
        deepspeed(
            bad=fp16(consecutive_hysteresis=True), good=fp16(consecutive_hysteresis=False), line=2
        ),
    ),
    "ds-initial-scale-high": (
        deepspeed(bad=fp16(initial_scale_power=32), good=fp16(initial_scale_power=16), line=2),
        deepspeed(
            bad={"fp16": {"enabled": "auto", "initial_scale_power": 24}},
            good={"fp16": {"enabled": False, "initial_scale_power": 24}},
            line=2,
        ),
    ),
    "ds-min-scale-zero": (
        deepspeed(bad=fp16(min_loss_scale=0), good=fp16(min_loss_scale=1), line=2),
    ),
    "ds-clipping-by-version": (deepspeed(bad=BATCH, good={**BATCH, "gradient_clipping": 0}),),
    "ds-auto": (
        deepspeed(bad={"bf16": {"enabled": "auto"}}, good={"bf16": {"enabled": True}}, line=2),
    ),
    "ds-batch-contradiction": (
        deepspeed(
            bad={"train_batch_size": 7, **BATCH}, good={"train_batch_size": 8, **BATCH}, line=2
        ),
    ),
    "ds-removed-key": (
        deepspeed(bad={**BATCH, "amp": {"enabled": False}}, good={**BATCH, "aio": None}, line=3),
        deepspeed(bad=zero(3, mics_shard_size=2), good=zero(3), line=2),
    ),
    "ds-comms-logger": (
        deepspeed(bad={"comms_logger": {"enabled": False}, **BATCH}, good=BATCH, line=2),
    ),
    "ds-timers": (
        deepspeed(bad={"wall_clock_breakdown": True}, good={"wall_clock_breakdown": False}, line=2),
        deepspeed(
            bad={"flops_profiler": {"enabled": True}},
            good={"flops_profiler": {"enabled": False}},
            line=2,
        ),
        deepspeed(
            bad={"timers": {"throughput": {"enabled": True}}},
            good={"timers": {"throughput": {"enabled": True, "synchronized": False}}},
            line=2,
        ),
    ),
    "ds-other-stage": (
        deepspeed(
            bad=zero(2, stage3_max_live_parameters=1),
            good=zero(3, stage3_max_live_parameters=1),
            line=2,
        ),
        deepspeed(bad=zero(1, allgather_partitions=True), good=zero(1), line=2),
    ),
    "ds-not-strict": (Case("deepspeed", '{\n"bf16": {}, // x\n}', '{\n"bf16": {}\n}', 1),),
}
