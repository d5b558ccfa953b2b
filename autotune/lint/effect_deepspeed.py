"""What a DeepSpeed configuration effectively does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.configs.deepspeed_blocks import switch, zero_block, zero_stage
from autotune.configs.deepspeed_says import (
    ACCUMULATION,
    MICRO,
    TRAIN,
    accumulation,
    bucket_elements,
    follows,
    loss_scale,
    overlap,
    precision,
    size,
    wire,
)
from autotune.configs.texts import block
from autotune.configs.values import AUTO, as_bool, as_float, as_int
from autotune.lint.effect import SCRIPT, By, Effect, loss_scale_text, size_text
from autotune.setup import DTYPE_BYTES

Config = Mapping[str, Any]
STAGES = {
    0: "ZeRO 0: everything on every rank",
    1: "ZeRO 1: optimizer state sharded",
    2: "ZeRO 2: optimizer state and gradients sharded",
    3: "ZeRO 3: optimizer state, gradients and parameters sharded",
}
PREFETCH_ELEMENTS = 50_000_000
ALLGATHER_ELEMENTS = 500_000_000
ALLREDUCE_ELEMENTS = 500_000_000  # runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE
HALVES = ("fp16", "float16", "half", "torch.float16")


def deepspeed_effects(config: Config, *, auto: bool) -> Iterator[Effect]:
    """Every aspect.

    Args:
        config: The configuration.
        auto: Whether transformers or accelerate complete it.
    """
    computed, stage = precision(config, auto=auto), zero_stage(config)
    yield _precision(config, computed, auto)
    yield _wire(config, computed, stage, auto)
    yield _accumulation(config, computed)
    yield _sharding(config, stage)
    yield _prefetch(config, computed, stage)
    yield _buckets(config, computed, stage)
    yield _scaler(config, computed, stage, auto)
    yield _batch(config)


def _autocast(config: Config) -> str | None:
    values = block(config, "torch_autocast")
    if not as_bool(values.get("enabled", False)):
        return None
    named = str(values.get("dtype") or "").removeprefix("torch.")
    return "fp16" if named in HALVES else "bf16" if named in ("bf16", "bfloat16") else "default"


def _precision(config: Config, computed: str | None, auto: bool) -> Effect:
    states = [switch(config, name, hf=auto) for name in ("fp16", "bf16")]
    if states == ["on", "on"]:
        return Effect("precision", None, "unclear", "fp16 and bf16 at once, which is refused")
    cast = _autocast(config)
    if cast is not None:
        dtype = "torch's default dtype" if cast == "default" else cast
        inside = computed or "the script's precision"
        text = f"{inside} parameters, with torch.autocast in {dtype} inside"
        return Effect("precision", computed, "file", text)
    if computed is None:
        return Effect("precision", None, "script", SCRIPT)
    told = any(block(config, name) for name in ("fp16", "bf16", "bfloat16"))
    return Effect("precision", computed, "file" if told else "default", computed)


def _wire(config: Config, computed: str | None, stage: int | None, auto: bool) -> Effect:
    cast = _autocast(config)
    if cast is not None and (stage or 0) > 0:
        text = f"each module's autocast dtype ({cast}), whatever communication_data_type says"
        return Effect("wire", None if cast == "default" else cast, "file", text)
    if (as_int(config.get("sequence_parallel_size", 1)) or 1) > 1:
        return _under_sequence_parallelism(config, stage)
    if "communication_data_type" in config and config["communication_data_type"] is not None:
        sent = wire(config, computed)
        if sent is None:
            return Effect("wire", None, "unclear", "communication_data_type is no dtype")
        return Effect("wire", sent, "file", sent)
    sent = follows(computed)
    rocm = "; fp32 with accelerate on ROCm" if auto and computed in ("bf16", None) else ""
    if sent is None:
        text = f"that of the precision, as {SCRIPT}{rocm}"
        return Effect("wire", None, "script", text)
    before = {
        "bf16": "fp32 in DeepSpeed 0.9.0 and 0.9.1, fp16 with ZeRO before",
        "fp32": "fp16 with ZeRO before DeepSpeed 0.9.0",
        "fp16": "in every version",
    }[sent]
    by: By = "default" if sent == "fp16" else "version"
    return Effect("wire", sent, by, f"{sent}, that of the precision ({before}{rocm})")


def _under_sequence_parallelism(config: Config, stage: int | None) -> Effect:
    """Has a dtype of its own, which stages 1 and 2 overrule (stage_1_and_2.py:2373)."""
    named = str(config.get("seq_parallel_communication_data_type") or "fp32").lower()
    if stage in (1, 2):
        return Effect("wire", "fp32", "default", "fp32: stages 1 and 2 under sequence parallelism")
    by: By = "file" if "seq_parallel_communication_data_type" in config else "default"
    text = f"{named}, seq_parallel_communication_data_type, in place of communication_data_type"
    return Effect("wire", named, by, text)


def _accumulation(config: Config, computed: str | None) -> Effect:
    named = block(config, "data_types").get("grad_accum_dtype")
    if named is not None:
        return Effect("accumulation", str(named), "file", f"gradients add up in {named}")
    says = computed or f"the precision, as {SCRIPT}"
    by: By = "script" if computed is None else "default"
    return Effect("accumulation", computed, by, f"gradients add up in {says}")


def _sharding(config: Config, stage: int | None) -> Effect:
    if stage is None:
        auto = zero_block(config).get("stage") == AUTO
        text = 'stage "auto": 2 with accelerate, 0 with DeepSpeed alone'
        if auto:
            return Effect("sharding", None, "script", text)
        return Effect("sharding", None, "unclear", "zero_optimization.stage is no stage")
    zero = block(config, "zero_optimization")
    text = STAGES.get(stage, f"ZeRO {stage}, which does not exist")
    for name, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        device = block(zero, name).get("device", "none")
        if device not in ("none", AUTO, None):
            text += f"; {what} on {device}"
    hpz = as_int(zero.get("zero_hpz_partition_size", 1)) or 1
    if hpz > 1 and stage == 3:
        text += f"; parameters sharded over {hpz} ranks only (hpZ)"
    return Effect("sharding", stage, "file" if "stage" in zero else "default", text)


def _prefetch(config: Config, computed: str | None, stage: int | None) -> Effect:
    zero = zero_block(config)
    if stage == 0:
        return Effect("prefetch", False, "default", "no overlap: all gradients after the backward")
    overlapped = overlap(config, stage)
    named = "overlap_comm" in zero and zero["overlap_comm"] not in (None, AUTO)
    by: By = "file" if named else "default"
    if overlapped is None:
        return Effect("prefetch", None, "script", "overlap_comm follows from the stage")
    text = f"reduction {'overlaps' if overlapped else 'does not overlap'} the backward"
    if stage == 3:
        text += f"; {_gathered(zero, computed)} of parameters are fetched ahead"
    return Effect("prefetch", overlapped, by, text)


def _gathered(zero: Config, computed: str | None) -> str:
    named = zero.get("stage3_prefetch_bucket_size", zero.get("prefetch_bucket_size"))
    if named == AUTO:
        return "0.9 x hidden^2 elements"
    elements = as_int(PREFETCH_ELEMENTS if named is None else named)
    return "some" if elements is None else _bytes(elements, computed)


def _bytes(elements: int, dtype: str | None) -> str:
    if dtype is None:
        return f"{size_text(2 * elements)} (16 bits) or {size_text(4 * elements)} (fp32)"
    return size_text(elements * (4 if dtype == "fp32" else 2))


def _buckets(config: Config, computed: str | None, stage: int | None) -> Effect:
    if stage == 0:
        sent = wire(config, computed)
        size_of = None if sent is None else ALLREDUCE_ELEMENTS * DTYPE_BYTES[sent]
        text = f"gradients in {_bytes(ALLREDUCE_ELEMENTS, sent)}, which stage 0 fixes"
        return Effect("buckets", size_of, "default", text)
    named = zero_block(config).get("reduce_bucket_size")
    if named == AUTO:
        return Effect("buckets", None, "script", "hidden^2 elements, which transformers fills in")
    elements, sent = bucket_elements(config), wire(config, computed)
    if elements is None:
        return Effect("buckets", None, "unclear", "reduce_bucket_size is no number")
    value = None if sent is None else elements * DTYPE_BYTES[sent]
    by: By = "default" if named is None else "file"
    text = f"gradients in {_bytes(elements, sent)}, {elements:,} elements"
    gathered = zero_block(config).get("allgather_bucket_size", ALLGATHER_ELEMENTS)
    if stage in (1, 2) and as_int(gathered) is not None:
        text += f"; parameters in {_bytes(as_int(gathered) or 0, computed)}"
    return Effect("buckets", value, by, text)


def _scaler(config: Config, computed: str | None, stage: int | None, auto: bool) -> Effect:
    if _autocast(config) == "fp16":
        text = "torch.amp.GradScaler with its defaults, whatever fp16 says"
        return Effect("scaler", {"initial_power": 16, "window": 2000}, "default", text)
    if switch(config, "fp16", hf=auto) == "off" or computed not in ("fp16", None):
        return Effect("scaler", None, "default", "none")
    values = block(config, "fp16")
    static = as_float(values.get("loss_scale", 0)) if values.get("loss_scale") != AUTO else 0
    said = "with fp16: " if computed is None else ""
    if static:
        return Effect("scaler", {"static": static}, "file", f"{said}static at {static:g}")
    scale = loss_scale(values, stage)
    by: By = "file" if set(values) - {"enabled", "auto_cast"} else "default"
    return Effect("scaler", scale, by, said + loss_scale_text(scale))


def _batch(config: Config) -> Effect:
    train, micro, steps = size(config, TRAIN), size(config, MICRO), accumulation(config)
    if any(config.get(name) == AUTO for name in (MICRO, ACCUMULATION)):
        known = {"train": train, "micro": micro, "accumulation": size(config, ACCUMULATION)}
        said = [f"{name} {value}" for name, value in known.items() if value is not None]
        rest = f" ({', '.join(said)} in the file)" if said else ""
        return Effect("batch", None, "script", f"{SCRIPT}{rest}")
    if train is not None and micro and steps:
        ranks, left = divmod(train, micro * steps)
        fits = f"for {ranks} ranks" if not left and ranks else "which fits no number of ranks"
        text = f"{train} = {micro} x {steps} x ranks, {fits}"
        if ACCUMULATION in config or left:
            return Effect("batch", {"train": train, "micro": micro, "steps": steps}, "file", text)
    if train is not None and micro:
        text = f"{train} = {micro} x accumulation x ranks: accumulation follows from the ranks"
        return Effect("batch", {"train": train, "micro": micro}, "file", text)
    if micro is not None:
        text = f"{micro} x {steps} x ranks"
        return Effect("batch", {"micro": micro, "steps": steps}, "file", text)
    if train is not None:
        text = f"{train} in all, shared by the ranks{_steps(config)}"
        return Effect("batch", {"train": train}, "file", text)
    return Effect("batch", None, "script", f"{SCRIPT}, unless DeepSpeed stops: no size is named")


def _steps(config: Config) -> str:
    steps = size(config, ACCUMULATION)
    return "" if steps is None else f" and {steps} backward calls"
