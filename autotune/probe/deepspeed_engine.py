"""The real DeepSpeed engine, configured by the rendered JSON."""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import deepspeed
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.zero import parameter_offload
from deepspeed.utils import safe_get_full_fp32_param
from torch import Tensor, nn

from autotune.probe.engine import (
    TIMED,
    TORCH_DTYPES,
    Optimization,
    RefusedSetupError,
    ScaleFloorError,
    checkpoint_layers,
    plain_name,
    set_matmul_precision,
)
from autotune.probe.workload import Task
from autotune.setup import DTYPE_BYTES, Setup

NOT_OURS = (
    *("optimizer", "scheduler"),
    *("wall_clock_breakdown", "memory_breakdown", "flops_profiler", "comms_logger", "dump_state"),
    *("tensorboard", "wandb", "csv_monitor", "comet"),
)
"""Keys of a user's own configuration that this trainer leaves out: it brings an optimizer and a
constant learning rate, and the rest slows or reports what is measured."""
AT_FLOOR = "loss scale already at minimum"
# Found once, after the import and before anything is frozen out of the collector's sight.
METHOD_CACHES: tuple[Any, ...] = tuple(
    item
    for item in gc.get_objects()
    if isinstance(item, functools._lru_cache_wrapper)
    and str(item.__module__).startswith("deepspeed.runtime")
)


class DeepSpeedRunner:
    """`deepspeed.initialize` on the task's model."""

    def __init__(
        self, task: Task, setup: Setup, rendered: str, optimization: Optimization = TIMED
    ) -> None:
        config = own_trainers(json.loads(rendered))
        check_config(config, setup)
        if not optimization.clip:
            config["gradient_clipping"] = 0.0
        if optimization.optimizer == "sgd":
            config["zero_allow_untested_optimizer"] = True  # ZeRO knows the Adam family by name
        set_matmul_precision(setup)
        if setup.activation_checkpointing:
            checkpoint_layers(task.model, task.layers)
        self._loss = task.loss
        self._dtype = TORCH_DTYPES[setup.precision]
        self._engine, *_ = deepspeed.initialize(
            model=task.model, optimizer=optimization.make(task.model), config=config
        )
        self._stage = setup.zero_stage
        self._cast = self._engine.module.register_forward_pre_hook(
            self._cast_inputs, with_kwargs=True
        )

    def _cast_inputs(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # FSDP2 casts floating inputs to the compute dtype; DeepSpeed leaves it to the script.
        return (
            tuple(self._cast_one(value) for value in args),
            {name: self._cast_one(value) for name, value in kwargs.items()},
        )

    def _cast_one(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.to(self._dtype)
        return value

    def forward(self, batch: Any) -> Tensor:
        """Scalar loss of one micro-batch."""
        return self._loss(self._engine, batch)

    def backward(self, loss: Tensor) -> None:
        """DeepSpeed scales by the accumulation and reduces when its stage says so."""
        self._engine.backward(loss)

    def end_micro_batch(self) -> None:
        """DeepSpeed counts micro-batches in `step`, which updates at the boundary only."""
        if not self._engine.is_gradient_accumulation_boundary():
            self._engine.step()

    def step(self) -> bool:
        """Optimizer step; False when DeepSpeed skipped it for overflow.

        Raises:
            ScaleFloorError: It overflowed at the smallest scale.
        """
        skipped = self._engine.skipped_steps
        try:
            self._engine.step()
        except Exception as error:  # DeepSpeed has no class of its own for it
            if AT_FLOOR not in str(error):
                raise
            raise ScaleFloorError(f"DeepSpeed ended the training: {error}") from error
        return bool(self._engine.skipped_steps == skipped)

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """The fp32 weights that the optimizer holds, gathered one by one."""
        beside = self._beside() if self._stage == 0 else {}
        for name, parameter in self._engine.module.named_parameters():
            if parameter.requires_grad:
                whole = beside.get(id(parameter), safe_get_full_fp32_param(parameter))
                yield plain_name(name), (parameter if whole is None else whole).detach()

    def _beside(self) -> dict[int, Tensor]:
        """Stage 0 keeps its masters in lists beside the weights of the model; by their id."""
        optimizer = self._engine.optimizer
        halves = [item for group in getattr(optimizer, "fp16_groups", ()) for item in group]
        wholes = [item for group in getattr(optimizer, "fp32_groups", ()) for item in group]
        return {id(half): whole for half, whole in zip(halves, wholes, strict=True)}

    def unsynced(self) -> AbstractContextManager[None] | None:
        """DeepSpeed can leave the reduction out in stages 0 and 1."""
        if self._stage > 1:
            return None
        context: AbstractContextManager[None] = self._engine.no_sync()
        return context

    def close(self) -> None:
        """Destroys the engine and what DeepSpeed keeps of it in module globals."""
        self._cast.remove()
        self._engine.destroy()
        del self._engine, self._loss
        forget_engines()


def forget_engines() -> None:
    """Empties two module globals of ZeRO-3 that outlive `DeepSpeedEngine.destroy`.

    In DeepSpeed 0.19.8 they keep the model and the optimizer state of every engine alive: the
    stack of forwarded modules, and the caches of ``functools.lru_cache`` on methods.
    """
    parameter_offload.FWD_MODULE_STACK.clear()
    for cache in METHOD_CACHES:
        cache.cache_clear()


def own_trainers(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without what this trainer brings itself.

    An offloaded optimizer may be torch's, and no timer synchronises the device.
    """
    own = {key: value for key, value in config.items() if key not in NOT_OURS}
    if own.get("zero_optimization", {}).get("offload_optimizer"):
        own["zero_force_ds_cpu_optimizer"] = False
    own["timers"] = {"throughput": {"enabled": False}}
    return own


def check_config(config: dict[str, Any], setup: Setup) -> None:
    """Reads the configuration with DeepSpeed's own class and compares it with the setup.

    Raises:
        RefusedSetupError: DeepSpeed refuses it, or reads something else out of it.
    """
    try:
        parsed = DeepSpeedConfig(config)
    except (ValueError, TypeError, AssertionError, KeyError) as error:
        raise RefusedSetupError(f"DeepSpeed refuses the configuration: {error}") from error
    found = effective_values(parsed)
    for name, wanted in wanted_values(setup).items():
        if found[name] != wanted:
            raise RefusedSetupError(
                f"DeepSpeed reads {name} = {found[name]!r} from the rendered configuration, "
                f"the setup says {wanted!r}; correct the template."
            )


def effective_values(parsed: Any) -> dict[str, Any]:
    """What DeepSpeed understood, under its own field names."""
    values = {
        "train_micro_batch_size_per_gpu": parsed.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": parsed.gradient_accumulation_steps,
        "zero_optimization.stage": parsed.zero_optimization_stage,
        "zero_optimization.overlap_comm": parsed.zero_config.overlap_comm,
        "zero_optimization.reduce_bucket_size": parsed.zero_config.reduce_bucket_size,
        "communication_data_type": parsed.communication_data_type,
        "fp16.enabled": parsed.float16_config.enabled,
        "bf16.enabled": parsed.bfloat16_config.enabled,
        "fp16.initial_scale_power": parsed.float16_config.initial_scale_power,
        "fp16.loss_scale_window": parsed.float16_config.loss_scale_window,
        "fp16.hysteresis": parsed.float16_config.hysteresis,
        "fp16.min_loss_scale": parsed.float16_config.min_loss_scale,
    }
    return values


def wanted_values(setup: Setup) -> dict[str, Any]:
    """What the setup asks for, under DeepSpeed's field names."""
    values: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": setup.micro_batch,
        "gradient_accumulation_steps": setup.gradient_accumulation,
        "zero_optimization.stage": setup.zero_stage,
        "communication_data_type": TORCH_DTYPES[setup.grad_comm_dtype],
        "fp16.enabled": setup.precision == "fp16",
        "bf16.enabled": setup.precision == "bf16",
    }
    if setup.overlap_comm is not None:
        values["zero_optimization.overlap_comm"] = setup.overlap_comm
    if setup.bucket_bytes is not None:
        elements = setup.bucket_bytes // DTYPE_BYTES[setup.grad_comm_dtype]
        values["zero_optimization.reduce_bucket_size"] = elements
    if setup.loss_scale is not None:
        values["fp16.initial_scale_power"] = setup.loss_scale.initial_power
        values["fp16.loss_scale_window"] = setup.loss_scale.window
        if setup.zero_stage > 0:  # stage 0 has no such rule
            values["fp16.hysteresis"] = setup.loss_scale.hysteresis
        values["fp16.min_loss_scale"] = setup.loss_scale.minimum
    return values
