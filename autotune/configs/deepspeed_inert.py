"""Keys of a DeepSpeed configuration that do nothing, and what is worth to know about others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autotune.configs.deepspeed_blocks import zero_stage
from autotune.configs.deepspeed_keys import READ, REMOVED, REPLACED, TOP_LEVEL, VALIDATED
from autotune.configs.names import closest
from autotune.configs.texts import block
from autotune.configs.understood import Inert
from autotune.configs.values import AUTO, Kind, as_bool, as_int

COMMENTS = ("_", "/", "#")  # a key that begins so is the author's note
GONE: Mapping[str, tuple[str, str | None]] = {
    "fp32_allreduce": ("gone from DeepSpeed; communication_data_type: fp32 is what it did", None),
    "fp16_auto_cast": ("gone from DeepSpeed; fp16.auto_cast is what it did", "fp16.auto_cast"),
    "zero_stage": ("DeepSpeed reads zero_optimization.stage", "zero_optimization.stage"),
    "max_grad_norm": ("DeepSpeed reads gradient_clipping", "gradient_clipping"),
    "mixed_precision": ("DeepSpeed reads fp16.enabled and bf16.enabled", None),
    "comms_config": ("DeepSpeed has no such key; it reads comms_logger", None),
    "monitor_config": (
        "DeepSpeed has no such key; it reads tensorboard, wandb, csv_monitor, comet",
        None,
    ),
}
"""Keys that are known to be gone, each with what to say and the key that took its place."""
HOMES = ("fp16", "zero_optimization", "data_types", "bf16", "optimizer", "activation_checkpointing")
"""Where a key that stands at the top level by mistake may belong, first home first."""
NO_HOME = ("enabled", "type", "params")


def inert_keys(config: Mapping[str, Any]) -> Iterator[Inert]:
    """Keys that DeepSpeed reads over without a word."""
    for key in config:
        if key not in (*TOP_LEVEL, *REMOVED) and not key.startswith(COMMENTS):
            yield _top_level(key)
    for name, known in READ.items():
        for key in block(config, name):
            if key not in known and not key.startswith(COMMENTS):
                yield _ignored(f"{name} has", f"{name}.", key, known)
    if "allgather_size" in config and config.get("zero_optimization") is not True:
        yield Inert("allgather_size", "DeepSpeed reads it beside zero_optimization: true only")
    if "bfloat16" in config and config.get("bf16") is not None:
        yield Inert("bfloat16", "an old name; bf16 beside it counts")
    yield from _stage_0(config)


def _top_level(key: str) -> Inert:
    if key in GONE:
        why, meant = GONE[key]
        return Inert(key, why, "renamed", meant)
    for home in HOMES:
        if key in _keys(home) and key not in NO_HOME:
            why = f"DeepSpeed reads it inside {home} only"
            return Inert(key, why, "misplaced", f"{home}.{key}")
    return _ignored("DeepSpeed has", "", key, TOP_LEVEL)


def _keys(home: str) -> Mapping[str, Kind]:
    return READ[home] if home in READ else VALIDATED[home]


def _ignored(who: str, place: str, key: str, known: Iterable[str]) -> Inert:
    meant = closest(key, sorted(known))
    why = f"{who} no such key" + (f"; did you mean {meant}?" if meant else "")
    return Inert(f"{place}{key}", why, "unknown", meant and f"{place}{meant}")


def _stage_0(config: Mapping[str, Any]) -> Iterator[Inert]:
    """Stage 0 has a scaler of its own, without hysteresis."""
    fp16 = block(config, "fp16")
    if zero_stage(config) != 0 or not as_bool(fp16.get("enabled")):
        return
    if (as_int(fp16.get("hysteresis", 1)) or 1) > 1:
        why = "ZeRO stage 0 halves the scale at the first overflow"
        yield Inert("fp16.hysteresis", why, "overruled")


def notes(config: Mapping[str, Any], strict: bool) -> Iterator[str]:
    """What is worth to know about keys that are understood."""
    yield from _old_names(config)
    if not strict:
        yield (
            "the file is no strict JSON (comments, trailing commas or YAML): DeepSpeed reads "
            "Hjson, transformers and accelerate do not"
        )
    yield from _disturbing(config)
    yield from _numerics(config)


def _old_names(config: Mapping[str, Any]) -> Iterator[str]:
    if "bfloat16" in config:
        read = "ignored beside bf16" if config.get("bf16") is not None else "read as bf16"
        yield f"bfloat16 is the old name of bf16: {read}"
    if isinstance(config.get("zero_optimization"), bool):
        stage = 1 if config["zero_optimization"] else 0
        yield f"zero_optimization is a single boolean: DeepSpeed reads it as stage {stage}"
    zero = block(config, "zero_optimization")
    for old, new in REPLACED.items():
        if old in zero:
            yield f"zero_optimization.{old} is the old name of {new}"


def _disturbing(config: Mapping[str, Any]) -> Iterator[str]:
    """Instruments that slow what is measured."""
    slow = "which slows every setup that is measured"
    if as_bool(config.get("wall_clock_breakdown", False)):
        yield f"wall_clock_breakdown is on: DeepSpeed synchronises in every micro-batch, {slow}"
    if "comms_logger" in config:
        yield f"comms_logger is on by its mere key, whatever it says: it synchronises, {slow}"
    if as_bool(block(config, "flops_profiler").get("enabled", False)):
        yield f"flops_profiler is on: it synchronises in every module, {slow}"


def _numerics(config: Mapping[str, Any]) -> Iterator[str]:
    zero, fp16 = block(config, "zero_optimization"), block(config, "fp16")
    if as_bool(fp16.get("enabled")) and zero_stage(config) == 0:
        yield (
            "fp16 at ZeRO stage 0: DeepSpeed 0.19.8 divides the gradients by a loss scale that "
            "it never multiplied the loss with"
        )
    if as_bool(zero.get("zero_quantized_gradients", False)):
        yield (
            "zero_quantized_gradients does nothing on one node, where probes run; between nodes "
            "gradients travel quantised, whatever the dtype on the wire"
        )
    if "gradient_clipping" not in config:
        yield "gradient_clipping is absent: DeepSpeed 0.19.8 clips at 1.0, older ones did not clip"
    if "max_grad_norm" in block(config, "optimizer", "params"):
        yield (
            "optimizer.params.max_grad_norm: DeepSpeed refuses it when it builds the optimizer; "
            "use gradient_clipping"
        )
    if block(config, "bf16").get("check_grad_overflow") is False:
        yield "bf16.check_grad_overflow is off: an infinite gradient is applied at stages 1 and 2"


def script_only(config: Mapping[str, Any]) -> Iterator[Inert]:
    """What autotune's own trainer does not do, whatever the file says."""
    own = "autotune's own trainer brings"
    if block(config, "optimizer"):
        yield Inert("optimizer", f"{own} AdamW")
    if block(config, "scheduler"):
        yield Inert("scheduler", f"{own} a constant learning rate")
    if any(value for value in block(config, "activation_checkpointing").values()):
        yield Inert("activation_checkpointing", "for models that call deepspeed.checkpointing")
    if as_bool(block(config, "compile").get("deepcompile", False)):
        yield Inert("compile.deepcompile", "for scripts that call engine.compile()")
    if block(config, "zero_optimization", "zenflow"):
        yield Inert("zero_optimization.zenflow", "for optimizers that DeepSpeed builds")
    for name in ("hybrid_engine", "expert_parallel"):
        if as_bool(block(config, name).get("enabled", False)):
            yield Inert(name, "for models that it knows")
    if block(config, "pipeline"):
        yield Inert("pipeline", "for models that are a PipelineModule")


def fills(config: Mapping[str, Any]) -> bool:
    """Whether the file leaves keys to the script: transformers or accelerate fill ``"auto"``."""
    return any(value == AUTO for value in _leaves(config))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in ("zenflow", "pipeline", "expert_parallel", "data_types"):
                yield from _leaves(item)
    else:
        yield value
