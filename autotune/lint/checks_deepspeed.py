"""What a DeepSpeed configuration does that it should not, numerics and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from autotune.configs.deepspeed_blocks import bf16_block, switch, zero_block, zero_stage
from autotune.configs.deepspeed_says import follows, precision, wire
from autotune.configs.texts import block
from autotune.configs.values import AUTO, as_bool, as_float, as_int
from autotune.lint.edits import insert, put, remove
from autotune.lint.finding import About, Check, Finding, found
from autotune.lint.versions import within

Config = Mapping[str, Any]
HIGH_POWER = 24
MOVED = ">=0.19.3"
"""Where gradient_clipping became 1.0 and bf16.check_grad_overflow true."""


def maybe(config: Config, name: Literal["fp16", "bf16"], about: About) -> bool:
    """Whether a precision is on, or may be switched on by the script."""
    return switch(config, name, hf=about.auto) != "off"


def zero_truth(config: Config, name: str) -> bool:
    """Whether a switch of ``zero_optimization`` is on."""
    return bool(as_bool(zero_block(config).get(name, False)))


def truth(config: Config, *names: str) -> bool:
    """Whether a switch is on."""
    return bool(as_bool(block(config, *names[:-1]).get(names[-1], False)))


def fp16_at_stage_0(config: Config, about: About) -> Iterator[Finding]:
    """The loss is not scaled there."""
    state = switch(config, "fp16", hf=about.auto)
    if zero_stage(config) != 0 or state == "off":
        return
    key = ("fp16", "enabled") if "enabled" in block(config, "fp16") else ()
    if state == "on":
        text = "fp16 at ZeRO stage 0: gradients are divided by a loss scale that the loss never had"
        yield found("ds-fp16-stage-0", key, text)
    elif "fp16" in config:
        text = (
            "fp16 is left to the script, at ZeRO stage 0: with fp16, gradients are divided by a "
            "loss scale that the loss never had"
        )
        yield found("ds-fp16-stage-0", key, text, level="warning")


def bf16_overflow(config: Config, about: About) -> Iterator[Finding]:
    """Whether infinite gradients are looked for."""
    name = "bf16" if config.get("bf16") is not None else "bfloat16"
    values, stage = bf16_block(config), zero_stage(config)
    if not values or not maybe(config, "bf16", about) or stage in (0, 3):
        return
    if "check_grad_overflow" not in values:
        text = "bf16.check_grad_overflow is absent: true from DeepSpeed 0.19.3 on, false before"
        edit = insert((name, "check_grad_overflow"), True)
        yield found("ds-bf16-overflow-by-version", (name,), text, edit)
    elif as_bool(values["check_grad_overflow"]) is False:
        key = (name, "check_grad_overflow")
        text = "bf16.check_grad_overflow is false: an infinite gradient is applied"
        yield found("ds-bf16-overflow-unchecked", key, text, put(key, True))


def autocast_fp16(config: Config, about: About) -> Iterator[Finding]:
    """ZeRO does not let its scaler fall."""
    values = block(config, "torch_autocast")
    half = str(values.get("dtype", "")).removeprefix("torch.") in ("fp16", "float16", "half")
    if truth(config, "torch_autocast", "enabled") and half and (zero_stage(config) or 0) > 0:
        text = "torch_autocast in fp16 with ZeRO: after the first overflow every step is skipped"
        yield found("ds-autocast-fp16-zero", ("torch_autocast", "dtype"), text)


def wire_dtype(config: Config, about: About) -> Iterator[Finding]:
    """Who decides about the dtype of the gradients between ranks."""
    named = config.get("communication_data_type")
    stage = zero_stage(config) or 0
    if truth(config, "torch_autocast", "enabled") and stage > 0:
        if named is not None:
            text = f"communication_data_type is {named}, which ZeRO ignores under torch_autocast"
            key = ("communication_data_type",)
            yield found("ds-wire-dtype-under-autocast", key, text, remove(*key))
        return
    if named is not None:
        return
    dtype = follows(precision(config, auto=about.auto))
    if dtype == "fp16" or (dtype == "fp32" and stage == 0):
        return  # the same in every version
    says = f"here {dtype}" if dtype else "that of the precision, which the script decides"
    text = f"communication_data_type is absent: {says}, but fp16 or fp32 before DeepSpeed 0.9.2"
    if dtype == "fp32":
        text = "communication_data_type is absent: here fp32, but fp16 before DeepSpeed 0.9.0"
    edits = (insert(("communication_data_type",), dtype),) if dtype else ()
    yield found("ds-wire-dtype-by-version", (), text, *edits)


def fp16_sum(config: Config, about: About) -> Iterator[Finding]:
    """All-reduce in fp16, divided only afterwards."""
    stage, zero = zero_stage(config), zero_block(config)
    summed = stage == 0 or (stage in (1, 2) and as_bool(zero.get("reduce_scatter", True)) is False)
    divided = truth(config, "prescale_gradients") or (
        as_float(config.get("gradient_predivide_factor", 1.0)) != 1.0
    )
    averaged = str(config.get("gradient_allreduce_op", "mean")).lower() == "mean"
    sent = wire(config, precision(config, auto=about.auto))
    if summed and averaged and not divided and sent == "fp16":
        where = "stage 0" if stage == 0 else f"stage {stage} without reduce_scatter"
        named = "communication_data_type" in config
        key = ("communication_data_type",) if named else ("fp16", "enabled")
        text = f"{where} sums gradients over all ranks in fp16 and divides afterwards"
        yield found("ds-fp16-sum-before-divide", key, text)


def overlap_race(config: Config, about: About) -> Iterator[Finding]:
    """Races that were fixed in some version."""
    if zero_stage(config) in (1, 2) and zero_truth(config, "overlap_comm"):
        known = about.versions.get("deepspeed")
        text = "overlap_comm in a DeepSpeed before 0.19.3 has a known race"
        if known is not None and within(known, ">=0.19.0"):
            text = "overlap_comm has a race under torch.compile before DeepSpeed 0.19.3"
        yield found("ds-overlap-race", ("zero_optimization", "overlap_comm"), text)


def quantized(config: Config, about: About) -> Iterator[Finding]:
    """Quantised gradients exist between nodes and at stage 3 only."""
    if zero_truth(config, "zero_quantized_gradients"):
        text = "zero_quantized_gradients does nothing on one node, or below stage 3"
        key = ("zero_optimization", "zero_quantized_gradients")
        yield found("ds-quantized-gradients", key, text)


def loss_scale(config: Config, about: About) -> Iterator[Finding]:
    """Traps of the loss scale, where fp16 is on or may be."""
    values = block(config, "fp16")
    if not values or not maybe(config, "fp16", about):
        return
    static = as_float(values.get("loss_scale", 0)) if values.get("loss_scale") != AUTO else 0
    if static:
        text = f"fp16.loss_scale is {values['loss_scale']}: the scale never changes"
        yield found("ds-static-loss-scale", ("fp16", "loss_scale"), text)
        return
    if truth(config, "fp16", "consecutive_hysteresis"):
        key = ("fp16", "consecutive_hysteresis")
        text = "fp16.consecutive_hysteresis is true: a scale that is too high stays"
        yield found("ds-consecutive-hysteresis", key, text, put(key, False))
    power = as_int(values.get("initial_scale_power", 16))
    if power is not None and power >= HIGH_POWER:
        key = ("fp16", "initial_scale_power")
        skipped = f"about {power - 14} skipped steps" if power < 128 else "a failing first step"
        text = f"fp16.initial_scale_power is {power}: it starts with {skipped}"
        yield found("ds-initial-scale-high", key, text, put(key, 16))


def clipping(config: Config, about: About) -> Iterator[Finding]:
    """Its default has moved."""
    if "gradient_clipping" in config:
        return
    known = about.versions.get("deepspeed")
    today = 1.0 if known is None or within(known, MOVED) else 0.0
    text = "gradient_clipping is absent: 1.0 from DeepSpeed 0.19.3 on, none before"
    yield found("ds-clipping-by-version", (), text, insert(("gradient_clipping",), today))


CHECKS: tuple[Check, ...] = (
    fp16_at_stage_0,
    bf16_overflow,
    autocast_fp16,
    wire_dtype,
    fp16_sum,
    overlap_race,
    quantized,
    loss_scale,
    clipping,
)
