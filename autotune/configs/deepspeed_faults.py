"""What is wrong in a DeepSpeed configuration, and what no setup of autotune can say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.configs.deepspeed_blocks import PRECISIONS, bf16_block, switch, zero_block
from autotune.configs.deepspeed_keys import (
    BATCH,
    READ,
    REMOVED,
    REMOVED_ZERO,
    REPLACED,
    SCALARS,
    STAGE3,
    TOP_LEVEL,
    VALIDATED,
)
from autotune.configs.deepspeed_unsaid import unsaid
from autotune.configs.names import closest
from autotune.configs.texts import block, show
from autotune.configs.understood import Fault
from autotune.configs.values import AUTO, PLACEHOLDER, Kind, as_bool, as_int

NEOX = ("pipe_parallel_size", "model_parallel_size", "num_layers", "train_iters", "precision")
BLOCKS = (*VALIDATED, *READ, "pipeline", "autotuning", "expert_parallel")
NULL_BLOCKS = ("bf16", "aio")  # null is the same as absent
SPELLINGS = {
    "fp32": ("fp32", "float32", "float"),
    "fp16": ("fp16", "float16", "half"),
    "bf16": ("bf16", "bfloat16"),
}


def foreign(config: Mapping[str, Any]) -> str | None:
    """Whose file it is, if it is not DeepSpeed's, and what to do with it."""
    if "distributed_type" in config:
        return (
            "distributed_type stands in it: this is a file of `accelerate config`; name it as "
            "baseline.accelerate_config"
        )
    neox = neox_keys(config)
    if neox:
        return (
            f"{', '.join(neox)} stand in it: this is a gpt-neox file, of which NeoX derives "
            "DeepSpeed's configuration; name your knobs in baseline instead (zero_stage, "
            "precision, grad_comm_dtype, bucket_bytes)"
        )
    inner = config.get("deepspeed")
    if isinstance(inner, Mapping):
        return (
            "deepspeed holds a mapping: the file is of a trainer that passes this part on; put "
            "what stands under deepspeed into a file of its own"
        )
    if not any(name in TOP_LEVEL or name in REMOVED for name in config):
        return "none of its keys is DeepSpeed's"
    return None


def neox_keys(config: Mapping[str, Any]) -> list[str]:
    """Keys by which a gpt-neox file is known; none of another file."""
    found = [name for name in NEOX if name in config]
    return found if len(found) > 1 else []


def faults(config: Mapping[str, Any]) -> Iterator[Fault]:
    """Every one, each with its key and value."""
    yield from _removed(config)
    yield from _blocks(config)
    yield from _scalars(config)
    yield from _zero(zero_block(config))
    yield from _batch(config)
    yield from _precision(config)
    yield from unsaid(config)


def _removed(config: Mapping[str, Any]) -> Iterator[Fault]:
    zero = block(config, "zero_optimization")
    for name in REMOVED:
        if name in config:
            text = f"{name}: DeepSpeed has removed it and stops at the mere key; delete it"
            yield Fault(name, text, "removed")
    for name in REMOVED_ZERO:
        if name in zero:
            place = f"zero_optimization.{name}"
            yield Fault(place, f"{place}: DeepSpeed has removed it; delete it", "removed")


def _blocks(config: Mapping[str, Any]) -> Iterator[Fault]:
    for name in BLOCKS:
        if name not in config:
            continue
        value = config[name]
        if name == "zero_optimization" and isinstance(value, bool):
            continue
        if name in NULL_BLOCKS and value is None:
            continue
        if not isinstance(value, dict):
            yield Fault(name, f"{name} is {show(value)}, where a mapping must stand", "type")
        elif name in VALIDATED:
            yield from _validated(name, value, VALIDATED[name])
        elif name in READ:
            yield from _read(name, value, READ[name])


def _read(name: str, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> Iterator[Fault]:
    """Faults of a block in which unknown keys are ignored."""
    for key, kind in kinds.items():
        if key in values:
            yield from _value(f"{name}.{key}", values[key], kind)


def _validated(name: str, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> Iterator[Fault]:
    """Faults of a block in which unknown keys are errors."""
    removed = REMOVED_ZERO if name == "zero_optimization" else ()
    for key, value in values.items():
        place = f"{name}.{key}"
        if key in removed:
            continue
        if key not in kinds:
            meant = closest(key, kinds)
            hint = f"; did you mean {meant}?" if meant else "; delete it"
            text = f"{place} is {show(value)}: DeepSpeed does not know this key and stops{hint}"
            yield Fault(place, text, "unknown", meant and f"{name}.{meant}")
        elif value != AUTO:
            yield from _value(place, value, kinds[key])


def _value(place: str, value: Any, kind: Kind) -> Iterator[Fault]:
    if kind.inner is not None and isinstance(value, dict):
        yield from (_validated if kind.closed else _read)(place, value, kind.inner)
    elif isinstance(value, str) and PLACEHOLDER.fullmatch(value) and not kind.accepts(value):
        text = (
            f"{place} is {show(value)}: a placeholder that some script fills in; give the file "
            "that it makes"
        )
        yield Fault(place, text, "placeholder")
    elif not kind.accepts(value):
        yield Fault(place, f"{place} is {show(value)}, where {kind.words} must stand", "type")


def _scalars(config: Mapping[str, Any]) -> Iterator[Fault]:
    for name, kind in SCALARS.items():
        value = config.get(name)
        if name not in config or (name == "gradient_clipping" and value == AUTO):
            continue
        if value == AUTO:
            text = f'{name} is "auto", which nobody fills in; delete it for the default'
            yield Fault(name, text, "auto")
        else:
            yield from _value(name, value, kind)


def _zero(zero: Mapping[str, Any]) -> Iterator[Fault]:
    both = [
        *((f"stage3_{name}", name) for name in STAGE3),
        *((old, new) for old, new in REPLACED.items()),
    ]
    for first, second in both:
        if first in zero and second in zero:
            text = f"zero_optimization has {first} and {second}, which are one; keep one"
            yield Fault(f"zero_optimization.{first}", text, "refused")
    stage = as_int(zero.get("stage", 0))
    if as_bool(zero.get("compute_grad_norm", True)) is False and stage not in (1, 2):
        text = (
            f"zero_optimization.compute_grad_norm is false at stage {stage}: DeepSpeed takes "
            "that at stages 1 and 2 only"
        )
        yield Fault("zero_optimization.compute_grad_norm", text, "refused")
    ratio = block(zero, "offload_optimizer").get("ratio", 1)
    if isinstance(ratio, int | float) and ratio < 1 and stage != 3:
        text = f"zero_optimization.offload_optimizer.ratio is {ratio}: below 1 needs stage 3"
        yield Fault("zero_optimization.offload_optimizer.ratio", text, "refused")
    if as_bool(zero.get("legacy_stage1", False)):
        text = "zero_optimization.legacy_stage1 is true: DeepSpeed no longer has it; delete it"
        yield Fault("zero_optimization.legacy_stage1", text, "refused")


def _batch(config: Mapping[str, Any]) -> Iterator[Fault]:
    sizes: dict[str, int] = {}
    for name in BATCH:
        value = config.get(name)
        if value is None or value == AUTO:
            continue
        found = None if isinstance(value, str | bool) else as_int(value)
        if found is not None and found > 0:
            sizes[name] = found
            continue
        kind = Kind("a whole number from 1", lambda value: False)
        yield from _value(name, value, kind)
    train, product = sizes.get(BATCH[0]), sizes.get(BATCH[1], 1) * sizes.get(BATCH[2], 1)
    if train is not None and train % product:
        others = " x ".join(str(sizes[name]) for name in BATCH[1:] if name in sizes)
        text = (
            f"train_batch_size is {train}, which is no multiple of {others} "
            "(train_micro_batch_size_per_gpu x gradient_accumulation_steps)"
        )
        yield Fault(BATCH[0], text, "batch")


def _precision(config: Mapping[str, Any]) -> Iterator[Fault]:
    fp16, bf16 = block(config, "fp16"), bf16_block(config)
    if as_bool(fp16.get("enabled")) and as_bool(bf16.get("enabled")):
        text = "fp16.enabled and bf16.enabled are both true, which DeepSpeed refuses; keep one"
        yield Fault("fp16.enabled", text, "precision")
    if fp16.get("enabled") == AUTO or as_bool(fp16.get("enabled", False)):
        yield from _loss_scale(fp16)
    yield from _param_dtype(config)


def _param_dtype(config: Mapping[str, Any]) -> Iterator[Fault]:
    """DeepSpeed demands that the parameters have the dtype of the precision."""
    named = str(block(config, "data_types").get("param_dtype") or "").removeprefix("torch.")
    states = {name: switch(config, name, hf=False) for name in PRECISIONS}
    if not named or "script" in states.values():
        return
    precision = next((name for name in PRECISIONS if states[name] == "on"), "fp32")
    if named not in SPELLINGS[precision]:
        text = f'data_types.param_dtype is "{named}", but the precision is {precision}; delete it'
        yield Fault("data_types.param_dtype", text, "refused")


def _loss_scale(fp16: Mapping[str, Any]) -> Iterator[Fault]:
    """What DeepSpeed refuses of a scale, and what it accepts and should not."""
    power = as_int(fp16.get("initial_scale_power", 16))
    if power is not None and not 0 <= power < 128:
        text = (
            f"fp16.initial_scale_power is {power}: allowed are 0 to 127, beyond which the scale "
            "is no fp32 number"
        )
        yield Fault("fp16.initial_scale_power", text, "unsafe")
    for key, lowest in (("loss_scale_window", 1), ("hysteresis", 1), ("min_loss_scale", 1)):
        value = as_int(fp16.get(key, lowest))
        if value is not None and value < lowest:
            why = ": the scale would never fall" if key == "hysteresis" else ""
            text = f"fp16.{key} is {value}, where a whole number from 1 must stand{why}"
            yield Fault(f"fp16.{key}", text, "unsafe" if key == "hysteresis" else "refused")
