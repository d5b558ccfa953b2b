"""Rules for DeepSpeed's configuration, numerics first."""

from __future__ import annotations

from autotune.lint.rules import Rule

PRECISION = (
    Rule(
        id="ds-fp16-stage-0",
        level="error",
        what="fp16 at ZeRO stage 0, where the loss is not scaled but the gradients are unscaled.",
        why="Every gradient is too small by the loss scale (65536 at the start): it runs at full "
        "speed, skips nothing, and learns next to nothing; Adam hides it in the loss curve.",
        source="DeepSpeed 0.19.8, runtime/engine.py:3417 (backward scales for ZeRO optimizers "
        "only) and runtime/fp16/unfused_optimizer.py (step divides); since #7665; open fix #8393; "
        "measured",
        fix="Use zero_optimization.stage 1, or bf16.",
        versions={"deepspeed": ">=0.18.3,<=0.19.8"},
    ),
    Rule(
        id="ds-bf16-overflow-unchecked",
        level="warning",
        what="bf16 without a check for infinite gradients.",
        why="One infinite gradient is applied at stages 1 and 2 and ruins the optimizer's state; "
        "stage 3 always checks.",
        source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py:3029; #8035; measured",
        fix="Set bf16.check_grad_overflow to true.",
        fixable=True,
    ),
    Rule(
        id="ds-bf16-overflow-by-version",
        level="info",
        what="bf16.check_grad_overflow is absent, so that it depends on the version.",
        why="From 0.19.3 on a step with an infinite gradient is skipped, before it was applied.",
        source="DeepSpeed #8035 (f0253c866, first in 0.19.3), runtime/precision_config.py:56; the "
        "key is there since 0.17.1 (#6976)",
        fix="Write it out.",
        versions={"deepspeed": ">=0.17.1"},
        fixable=True,
    ),
    Rule(
        id="ds-autocast-fp16-zero",
        level="error",
        what="torch_autocast in fp16 with ZeRO stage 1, 2 or 3.",
        why="After the first overflow every later step is skipped: the scaler is updated only "
        "where a step is taken.",
        source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py:3042-3068 returns before "
        "torch_autocast_gradscaler.update() at :2976; stage3.py likewise; measured",
        fix="Use torch_autocast.dtype bfloat16, or fp16.enabled.",
        versions={"deepspeed": "<=0.19.8"},
    ),
)

WIRE = (
    Rule(
        id="ds-wire-dtype-by-version",
        level="info",
        what="communication_data_type is absent, so that the dtype of the gradients on the wire "
        "depends on the version.",
        why="Under bf16 it is bf16 from 0.9.2 on, fp32 in 0.9.0 and 0.9.1, and fp16 with ZeRO "
        "before; accelerate makes it fp32 on ROCm. A user needed a bisect to find that.",
        source="DeepSpeed 0.19.8, runtime/engine.py:1719-1730, and the same place in 0.8.3, 0.9.0 "
        "and 0.9.2; #2970, #3370; accelerate 1.15.0, utils/dataclasses.py (set_mixed_precision)",
        fix="Write it out.",
        fixable=True,
    ),
    Rule(
        id="ds-wire-dtype-under-autocast",
        level="warning",
        what="communication_data_type beside torch_autocast with ZeRO.",
        why="ZeRO 1 to 3 reduce in each module's autocast dtype and ignore it, though the engine "
        "still reports it.",
        source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py:609-614, stage3.py:470-475; "
        "measured on the wire",
        fix="Delete it; bf16.enabled has a wire dtype of its own.",
        fixable=True,
    ),
    Rule(
        id="ds-fp16-sum-before-divide",
        level="warning",
        what="Gradients are summed over all ranks in fp16 before they are divided.",
        why="The sum overflows log2(ranks) bits earlier than one gradient does: 8 bits with 256 "
        "ranks that agree. The loss scale then falls until it fits.",
        source="DeepSpeed 0.19.8, runtime/engine.py:3803-3813 and runtime/zero/"
        "stage_1_and_2.py:1498-1506; overflow computed with 256 simulated ranks",
        fix="Set prescale_gradients, a gradient_predivide_factor near the square root of the "
        "ranks, or communication_data_type fp32.",
    ),
    Rule(
        id="ds-overlap-race",
        level="warning",
        what="overlap_comm at stage 1 or 2 in a version with a known race.",
        why="The reduction may read or overwrite a bucket that is in use, so that losses differ or "
        "are not finite: up to 0.14.2 where communication is slow, up to 0.18 after a few steps at "
        "stage 2, up to 0.19.2 under torch.compile.",
        source="DeepSpeed #5606 (fixed in 0.14.3), #7965 (fixed in 0.19.0), #8061 and #8080 (fixed "
        "in 0.19.3); read, not run",
        fix="Upgrade DeepSpeed to 0.19.3 or later, or set overlap_comm to false.",
        versions={"deepspeed": "<0.19.3"},
    ),
    Rule(
        id="ds-quantized-gradients",
        level="info",
        what="zero_quantized_gradients does nothing on one node, and nothing below stage 3.",
        why="Between nodes gradients are quantised, to less than the dtype on the wire says.",
        source="DeepSpeed 0.19.8, runtime/zero/stage3.py:1925-1931; read, and a no-op on one node "
        "when run",
        fix="Delete it for one node.",
    ),
)

SCALER = (
    Rule(
        id="ds-static-loss-scale",
        level="warning",
        what="A static loss scale.",
        why="It neither falls after an overflow nor grows when gradients shrink: steps are skipped "
        "for ever, or gradients underflow.",
        source="DeepSpeed 0.19.8, runtime/fp16/loss_scaler.py:293-299; measured",
        fix="Set fp16.loss_scale to 0.",
    ),
    Rule(
        id="ds-hysteresis-stage-0",
        level="warning",
        what="fp16.hysteresis at stage 0, which has none.",
        why="The scale is halved at the first overflow, whatever it says.",
        source="DeepSpeed 0.19.8, runtime/fp16/fused_optimizer.py and unfused_optimizer.py "
        "(_update_scale); measured",
        fix="Delete it, or use stage 1.",
        fixable=True,
    ),
    Rule(
        id="ds-hysteresis-zero",
        level="error",
        what="fp16.hysteresis below 1.",
        why="The scale then never falls: 25 of 25 steps were skipped at 65536.",
        source="DeepSpeed 0.19.8, runtime/fp16/loss_scaler.py:256-274 (no bound is checked); "
        "measured",
        fix="Set it to 2.",
        fixable=True,
    ),
    Rule(
        id="ds-consecutive-hysteresis",
        level="warning",
        what="fp16.consecutive_hysteresis is on.",
        why="Each clean step refills the tolerance, so that a scale that is a little too high "
        "stays: 1.4 % of the steps were skipped where 0.14 % were without it.",
        source="DeepSpeed 0.19.8, runtime/fp16/loss_scaler.py:277-281; simulated with gradients "
        "that vary by a bit",
        fix="Set it to false.",
        fixable=True,
    ),
    Rule(
        id="ds-initial-scale-high",
        level="warning",
        what="fp16.initial_scale_power is 24 or more.",
        why="Each power above the highest one that fits costs a skipped step at the start: 2^32 "
        "where 2^14 fits skips 19. From 128 on the first step fails.",
        source="DeepSpeed 0.19.8, runtime/fp16/loss_scaler.py:253-288; replayed; issue #931",
        fix="Set it to 16.",
        fixable=True,
    ),
    Rule(
        id="ds-min-scale-zero",
        level="error",
        what="fp16.min_loss_scale is 0.",
        why="DeepSpeed refuses it from 0.19.3 on; before, the scale could fall to 0 without a "
        "word.",
        source="DeepSpeed #8050 (ded23491c, first in 0.19.3), runtime/precision_config.py:195; "
        "asked",
        fix="Set it to 1.",
        fixable=True,
    ),
)

COURSE = (
    Rule(
        id="ds-clipping-by-version",
        level="info",
        what="gradient_clipping is absent, so that it depends on the version.",
        why="From 0.19.3 on gradients are clipped at 1.0, before they were not.",
        source="DeepSpeed #8068 (442166559, first in 0.19.3), runtime/constants.py",
        fix="Write it out: 1.0, or 0 for none.",
        fixable=True,
    ),
    Rule(
        id="ds-auto",
        level="info",
        what='Values are "auto", which only transformers and accelerate fill in.',
        why='DeepSpeed alone takes "auto" for the default in its own blocks, so that '
        "fp16.enabled trains in fp32, and stops at batch sizes and gradient_clipping.",
        source="DeepSpeed 0.19.8, runtime/config_utils.py:54-56; measured",
        fix="Start it with transformers or accelerate, or write values.",
    ),
    Rule(
        id="ds-batch-contradiction",
        level="error",
        what="train_batch_size is no multiple of micro-batch x accumulation.",
        why="DeepSpeed stops with an assertion: the sizes and the ranks have to multiply.",
        source="DeepSpeed 0.19.8, runtime/config.py:590-656; asked",
        fix="Name two of the three sizes.",
    ),
    Rule(
        id="ds-removed-key",
        level="error",
        what="A feature that DeepSpeed has removed.",
        why="Its mere key stops DeepSpeed, even where it is switched off.",
        source="DeepSpeed 0.19.7 and 0.19.8, runtime/config.py:81-131 (0.19.6 has no such list); "
        "issue #8489; asked",
        fix="Delete it.",
        versions={"deepspeed": ">=0.19.7"},
        fixable=True,
    ),
    Rule(
        id="ds-comms-logger",
        level="warning",
        what="comms_logger stands in the file.",
        why="Its mere key switches it on, whatever enabled says; it then synchronises every "
        "collective, so that nothing overlaps.",
        source="DeepSpeed 0.19.8, comm/config.py:22 and comm/comm.py:129-135; issue #2861; "
        "measured",
        fix="Delete the block.",
        fixable=True,
    ),
    Rule(
        id="ds-timers",
        level="warning",
        what="Timers that synchronise are on.",
        why="wall_clock_breakdown waits for the device in every micro-batch, flops_profiler "
        "switches it on for good, and timers.throughput waits around every micro-batch (it does "
        "by default, too).",
        source="DeepSpeed 0.19.8, utils/timer.py:38-41 and :231-256, runtime/engine.py:3665, "
        "runtime/config.py:533, utils/config.py",
        fix="Set wall_clock_breakdown, flops_profiler.enabled and timers.throughput.synchronized "
        "to false.",
        fixable=True,
    ),
    Rule(
        id="ds-other-stage",
        level="info",
        what="Keys of zero_optimization that this stage does not read.",
        why="They are parsed and then used by nothing; often they are left from another stage. "
        "allgather_partitions is read by no stage at all.",
        source="DeepSpeed 0.19.8, runtime/engine.py:2632-2795 (what each stage's optimizer is "
        "given) and :1745 (a getter that nobody calls)",
        fix="Delete them.",
        fixable=True,
    ),
    Rule(
        id="ds-not-strict",
        level="info",
        what="Comments, trailing commas or bare words.",
        why="DeepSpeed reads them (Hjson); transformers, accelerate and DeepSpeed's autotuner read "
        "strict JSON and stop.",
        source="DeepSpeed 0.19.8, runtime/config.py:444 and autotuning/autotuner.py:184; "
        "accelerate 1.15.0, utils/deepspeed.py (json.load)",
        fix="Write strict JSON.",
    ),
)

DEEPSPEED = (*PRECISION, *WIRE, *SCALER, *COURSE)
