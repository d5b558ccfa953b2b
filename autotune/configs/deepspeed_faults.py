"""Why a DeepSpeed configuration cannot be a baseline."""

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
from autotune.configs.names import closest
from autotune.configs.texts import block, show
from autotune.configs.values import AUTO, PLACEHOLDER, Kind, as_bool, as_int

NEOX = ("pipe_parallel_size", "model_parallel_size", "num_layers", "train_iters", "precision")
BLOCKS = (*VALIDATED, *READ, "pipeline", "autotuning", "expert_parallel")
NULL_BLOCKS = ("bf16", "aio")  # null is the same as absent
SPELLINGS = {
    "fp32": ("fp32", "float32", "float"),
    "fp16": ("fp16", "float16", "half"),
    "bf16": ("bf16", "bfloat16"),
}
MASTERS = (
    ("fp16", "fp16_master_weights_and_grads"),
    ("bf16", "bf16_master_weights_and_grads"),
    ("bf16", "bf16_optimizer_states"),
    ("bfloat16", "bf16_master_weights_and_grads"),
    ("bfloat16", "bf16_optimizer_states"),
)
SCALED = "autotune's setups scale dynamically, and a comparison with them would be of two things"


def foreign(config: Mapping[str, Any]) -> str | None:
    """Whose file it is, if it is not DeepSpeed's, and what to do with it."""
    if "distributed_type" in config:
        return (
            "distributed_type stands in it: this is a file of `accelerate config`; name it as "
            "baseline.accelerate_config"
        )
    neox = [name for name in NEOX if name in config]
    if len(neox) > 1:
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


def faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Every reason, each with its key and value."""
    yield from _removed(config)
    yield from _blocks(config)
    yield from _scalars(config)
    yield from _zero(zero_block(config))
    yield from _batch(config)
    yield from _precision(config)
    yield from _inexpressible(config)


def _removed(config: Mapping[str, Any]) -> Iterator[str]:
    zero = block(config, "zero_optimization")
    for name in REMOVED:
        if name in config:
            yield f"{name}: DeepSpeed has removed it and stops at the mere key; delete it"
    for name in REMOVED_ZERO:
        if name in zero:
            yield f"zero_optimization.{name}: DeepSpeed has removed it; delete it"


def _blocks(config: Mapping[str, Any]) -> Iterator[str]:
    for name in BLOCKS:
        if name not in config:
            continue
        value = config[name]
        if name == "zero_optimization" and isinstance(value, bool):
            continue
        if name in NULL_BLOCKS and value is None:
            continue
        if not isinstance(value, dict):
            yield f"{name} is {show(value)}, where a mapping must stand"
        elif name in VALIDATED:
            yield from _validated(name, value, VALIDATED[name])
        elif name in READ:
            yield from _read(name, value, READ[name])


def _read(name: str, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> Iterator[str]:
    """Faults of a block in which unknown keys are ignored."""
    for key, kind in kinds.items():
        if key in values:
            yield from _value(f"{name}.{key}", values[key], kind)


def _validated(name: str, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> Iterator[str]:
    """Faults of a block in which unknown keys are errors."""
    removed = REMOVED_ZERO if name == "zero_optimization" else ()
    for key, value in values.items():
        place = f"{name}.{key}"
        if key in removed:
            continue
        if key not in kinds:
            meant = closest(key, kinds)
            hint = f"; did you mean {meant}?" if meant else "; delete it"
            yield f"{place} is {show(value)}: DeepSpeed does not know this key and stops{hint}"
        elif value != AUTO:
            yield from _value(place, value, kinds[key])


def _value(place: str, value: Any, kind: Kind) -> Iterator[str]:
    if kind.inner is not None and isinstance(value, dict):
        yield from (_validated if kind.closed else _read)(place, value, kind.inner)
    elif isinstance(value, str) and PLACEHOLDER.fullmatch(value) and not kind.accepts(value):
        yield (
            f"{place} is {show(value)}: a placeholder that some script fills in; give the file "
            "that it makes"
        )
    elif not kind.accepts(value):
        yield f"{place} is {show(value)}, where {kind.words} must stand"


def _scalars(config: Mapping[str, Any]) -> Iterator[str]:
    for name, kind in SCALARS.items():
        value = config.get(name)
        if name not in config or (name == "gradient_clipping" and value == AUTO):
            continue
        if value == AUTO:
            yield f'{name} is "auto", which nobody fills in; delete it for the default'
        else:
            yield from _value(name, value, kind)


def _zero(zero: Mapping[str, Any]) -> Iterator[str]:
    both = [
        *((f"stage3_{name}", name) for name in STAGE3),
        *((old, new) for old, new in REPLACED.items()),
    ]
    for first, second in both:
        if first in zero and second in zero:
            yield f"zero_optimization has {first} and {second}, which are one; keep one"
    stage = as_int(zero.get("stage", 0))
    if as_bool(zero.get("compute_grad_norm", True)) is False and stage not in (1, 2):
        yield (
            f"zero_optimization.compute_grad_norm is false at stage {stage}: DeepSpeed takes "
            "that at stages 1 and 2 only"
        )
    ratio = block(zero, "offload_optimizer").get("ratio", 1)
    if isinstance(ratio, int | float) and ratio < 1 and stage != 3:
        yield f"zero_optimization.offload_optimizer.ratio is {ratio}: below 1 needs stage 3"
    if as_bool(zero.get("legacy_stage1", False)):
        yield "zero_optimization.legacy_stage1 is true: DeepSpeed no longer has it; delete it"


def _batch(config: Mapping[str, Any]) -> Iterator[str]:
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
        yield (
            f"train_batch_size is {train}, which is no multiple of {others} "
            "(train_micro_batch_size_per_gpu x gradient_accumulation_steps)"
        )


def _precision(config: Mapping[str, Any]) -> Iterator[str]:
    fp16, bf16 = block(config, "fp16"), bf16_block(config)
    if as_bool(fp16.get("enabled")) and as_bool(bf16.get("enabled")):
        yield "fp16.enabled and bf16.enabled are both true, which DeepSpeed refuses; keep one"
    for name, key in MASTERS:
        if as_bool(block(config, name).get(key, False)):
            yield (
                f"{name}.{key} is true: it keeps master weights or optimizer state in 16 bits; "
                "autotune's setups keep them in fp32"
            )
    if as_bool(block(config, "torch_autocast").get("enabled", False)):
        yield (
            "torch_autocast.enabled is true: the compute dtype then changes from module to "
            "module, and ZeRO ignores communication_data_type; use bf16.enabled or fp16.enabled"
        )
    if fp16.get("enabled") == AUTO or as_bool(fp16.get("enabled", False)):
        yield from _loss_scale(fp16)
    yield from _param_dtype(config)


def _param_dtype(config: Mapping[str, Any]) -> Iterator[str]:
    """DeepSpeed demands that the parameters have the dtype of the precision."""
    named = str(block(config, "data_types").get("param_dtype") or "").removeprefix("torch.")
    states = {name: switch(config, name, hf=False) for name in PRECISIONS}
    if not named or "script" in states.values():
        return
    precision = next((name for name in PRECISIONS if states[name] == "on"), "fp32")
    if named not in SPELLINGS[precision]:
        yield f'data_types.param_dtype is "{named}", but the precision is {precision}; delete it'


def _loss_scale(fp16: Mapping[str, Any]) -> Iterator[str]:
    """What no dynamic loss scale of a setup can say, where fp16 is or may be switched on."""
    static = fp16.get("loss_scale", 0)
    if static not in (0, AUTO, "0"):
        yield f"fp16.loss_scale is {show(static)}, a static scale; write 0: {SCALED}"
    if as_bool(fp16.get("consecutive_hysteresis", False)):
        yield (
            "fp16.consecutive_hysteresis is true: the search for a loss scale replays DeepSpeed "
            "without it; delete it"
        )
    power = as_int(fp16.get("initial_scale_power", 16))
    if power is not None and not 0 <= power < 128:
        yield (
            f"fp16.initial_scale_power is {power}: allowed are 0 to 127, beyond which the scale "
            "is no fp32 number"
        )
    for key, lowest in (("loss_scale_window", 1), ("hysteresis", 1), ("min_loss_scale", 1)):
        value = as_int(fp16.get(key, lowest))
        if value is not None and value < lowest:
            why = ": the scale would never fall" if key == "hysteresis" else ""
            yield f"fp16.{key} is {value}, where a whole number from 1 must stand{why}"


def _inexpressible(config: Mapping[str, Any]) -> Iterator[str]:
    """What would make a comparison with other setups lie."""
    tensor = as_int(block(config, "tensor_parallel").get("autotp_size", 0)) or 0
    if tensor > 1:
        yield (
            f"tensor_parallel.autotp_size is {tensor}: ranks then share their samples, of which "
            "autotune counts every rank's"
        )
    sequence = as_int(config.get("sequence_parallel_size", 1)) or 1
    if sequence > 1:
        yield (
            f"sequence_parallel_size is {sequence}: ranks then share their samples, of which "
            "autotune counts every rank's"
        )
    if str(config.get("gradient_allreduce_op", "mean")).lower() == "sum":
        yield 'gradient_allreduce_op is "sum": autotune and its other backends average gradients'
    yield from _autotuning(block(config, "autotuning"))
    yield from _data_efficiency(config)
    optimizer = str(block(config, "optimizer").get("type", "")).lower().replace("_", "")
    if optimizer in ("onebitadam", "zerooneadam", "onebitlamb"):
        yield (
            f"optimizer.type is {show(block(config, 'optimizer')['type'])}: DeepSpeed has removed "
            "it, and no knob says how it compressed gradients"
        )


def _autotuning(values: Mapping[str, Any]) -> Iterator[str]:
    if values.get("enabled", False):
        yield (
            "autotuning.enabled is true: DeepSpeed ends the training after a few steps; delete "
            "the block"
        )
    for name in ("results_dir", "exps_dir"):
        if not values.get(name, "x"):
            yield f"autotuning.{name} is empty, which DeepSpeed refuses"


def _data_efficiency(config: Mapping[str, Any]) -> Iterator[str]:
    for outer, inner in (
        ("data_routing", "random_ltd"),
        ("data_sampling", "curriculum_learning"),
        ("data_sampling", "dynamic_batching"),
    ):
        if block(config, "data_efficiency", outer, inner).get("enabled", False):
            yield (
                f"data_efficiency.{outer}.{inner}.enabled is true: how many tokens a step trains "
                "then changes from step to step, which no throughput tells"
            )
