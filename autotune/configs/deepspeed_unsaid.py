"""What is right in a DeepSpeed configuration, but would make a comparison with setups lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.configs.texts import block, show
from autotune.configs.understood import Fault
from autotune.configs.values import AUTO, as_bool, as_int

MASTERS = (
    ("fp16", "fp16_master_weights_and_grads"),
    ("bf16", "bf16_master_weights_and_grads"),
    ("bf16", "bf16_optimizer_states"),
    ("bfloat16", "bf16_master_weights_and_grads"),
    ("bfloat16", "bf16_optimizer_states"),
)
SCALED = "autotune's setups scale dynamically, and a comparison with them would be of two things"


def unsaid(config: Mapping[str, Any]) -> Iterator[Fault]:
    """Every one, each with its key and value."""
    for key, text in (
        *_precision(config),
        *_loss_scale(block(config, "fp16")),
        *_sharing(config),
        *_autotuning(block(config, "autotuning")),
        *_data_efficiency(config),
        *_optimizer(config),
    ):
        yield Fault(key, text, "unsaid")


def _precision(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, key in MASTERS:
        if as_bool(block(config, name).get(key, False)):
            yield (
                f"{name}.{key}",
                f"{name}.{key} is true: it keeps master weights or optimizer state in 16 bits; "
                "autotune's setups keep them in fp32",
            )
    if as_bool(block(config, "torch_autocast").get("enabled", False)):
        yield (
            "torch_autocast.enabled",
            "torch_autocast.enabled is true: the compute dtype then changes from module to "
            "module, and ZeRO ignores communication_data_type; use bf16.enabled or fp16.enabled",
        )


def _loss_scale(fp16: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What no dynamic loss scale of a setup can say, where fp16 is or may be switched on."""
    if fp16.get("enabled") != AUTO and not as_bool(fp16.get("enabled", False)):
        return
    static = fp16.get("loss_scale", 0)
    if static not in (0, AUTO, "0"):
        yield (
            "fp16.loss_scale",
            f"fp16.loss_scale is {show(static)}, a static scale; write 0: {SCALED}",
        )
    if as_bool(fp16.get("consecutive_hysteresis", False)):
        yield (
            "fp16.consecutive_hysteresis",
            "fp16.consecutive_hysteresis is true: the search for a loss scale replays DeepSpeed "
            "without it; delete it",
        )


def _sharing(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    shared = "ranks then share their samples, of which autotune counts every rank's"
    tensor = as_int(block(config, "tensor_parallel").get("autotp_size", 0)) or 0
    if tensor > 1:
        yield "tensor_parallel.autotp_size", f"tensor_parallel.autotp_size is {tensor}: {shared}"
    sequence = as_int(config.get("sequence_parallel_size", 1)) or 1
    if sequence > 1:
        yield "sequence_parallel_size", f"sequence_parallel_size is {sequence}: {shared}"
    if str(config.get("gradient_allreduce_op", "mean")).lower() == "sum":
        yield (
            "gradient_allreduce_op",
            'gradient_allreduce_op is "sum": autotune and its other backends average gradients',
        )


def _autotuning(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if values.get("enabled", False):
        yield (
            "autotuning.enabled",
            "autotuning.enabled is true: DeepSpeed ends the training after a few steps; delete "
            "the block",
        )
    for name in ("results_dir", "exps_dir"):
        if not values.get(name, "x"):
            yield f"autotuning.{name}", f"autotuning.{name} is empty, which DeepSpeed refuses"


def _data_efficiency(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for outer, inner in (
        ("data_routing", "random_ltd"),
        ("data_sampling", "curriculum_learning"),
        ("data_sampling", "dynamic_batching"),
    ):
        if block(config, "data_efficiency", outer, inner).get("enabled", False):
            place = f"data_efficiency.{outer}.{inner}.enabled"
            yield (
                place,
                f"{place} is true: how many tokens a step trains then changes from step to step, "
                "which no throughput tells",
            )


def _optimizer(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    optimizer = str(block(config, "optimizer").get("type", "")).lower().replace("_", "")
    if optimizer in ("onebitadam", "zerooneadam", "onebitlamb"):
        yield (
            "optimizer.type",
            f"optimizer.type is {show(block(config, 'optimizer')['type'])}: DeepSpeed has removed "
            "it, and no knob says how it compressed gradients",
        )
