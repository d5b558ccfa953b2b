"""The module for Lightning: what a real Trainer and its strategy make of the arguments."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DeepSpeedStrategy, ModelParallelStrategy
from torch.distributed.device_mesh import init_device_mesh

from autotune.consumer.dtypes import name_of
from autotune.consumer.modules import WIDTH, Model, one_rank, replicated, scale_of, sharded

MESH = ("data_parallel", "tensor_parallel")


class Learner(lightning.LightningModule):
    """A model that a script prepares as the exported module asks for."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self.model = Model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the model makes of a batch."""
        output: torch.Tensor = self.model(x)
        return output

    def configure_model(self) -> None:
        """Twice, as Lightning may call it more than once."""
        for _ in range(2):
            self.module.prepare(self.model, self.device_mesh)


def read(folder: Path) -> dict[str, Any]:
    """What Lightning does with the Trainer's arguments and the prepared model."""
    module = importlib.import_module("lightning_setup")
    arguments = module.trainer_arguments()
    # Whatever Slurm or torchrun say of the place, this is one process.
    plugins = [LightningEnvironment(), *arguments.pop("plugins", [])]
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, plugins=plugins, logger=False, **arguments
    )
    learner = Learner(module)
    trainer.strategy.connect(learner)
    learner.trainer = trainer
    with one_rank(folder):
        found = _effective(trainer, learner)
    if found["precision"] == "fp32" and torch.get_float32_matmul_precision() == "high":
        found["precision"] = "tf32"
    return {**found, "micro_batch": module.MICRO_BATCH}


def _effective(trainer: Any, learner: Learner) -> dict[str, Any]:
    if isinstance(trainer.strategy, DeepSpeedStrategy):
        return _by_deepspeed(trainer, learner)
    if isinstance(trainer.strategy, ModelParallelStrategy):
        return _sharded(trainer, learner)
    return _replicated(trainer, learner)


def _sharded(trainer: Any, learner: Learner) -> dict[str, Any]:
    learner._device_mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=MESH)
    learner.configure_model()
    found = {**sharded(learner.model), **_by_trainer(trainer)}
    # A precision plugin that casts would do so beside the policy.
    assert _autocasts_to(trainer.precision_plugin) is None
    return found


def _replicated(trainer: Any, learner: Learner) -> dict[str, Any]:
    learner.configure_model()
    trainer.strategy.configure_ddp()
    return {
        **replicated(trainer.strategy.model),
        **_by_trainer(trainer),
        "precision": name_of(_autocasts_to(trainer.precision_plugin)),
    }


def _by_deepspeed(trainer: Any, learner: Learner) -> dict[str, Any]:
    """The strategy trains on GPUs alone, but its configuration can be had everywhere."""
    from autotune.consumer.deepspeed import effective

    trainer.strategy._init_config_if_needed()
    found = effective(trainer.strategy.config)
    dtype = trainer.precision_plugin._desired_dtype
    assert name_of(dtype) == found["precision"], f"batches are cast to {dtype}"
    learner.configure_model()
    return {**found, "activation_checkpointing": _recomputes(learner.model)}


def _recomputes(model: Model) -> bool:
    """Whether a backward calls a layer a second time."""
    calls: list[Any] = []
    # Before it, as a repetition may end as soon as what the backward needs is there.
    inner = model.get_submodule("layers.0.inner")
    inner.register_forward_pre_hook(lambda *_: calls.append(_))
    model(torch.ones(1, WIDTH)).sum().backward()
    return len(calls) > 1


def _autocasts_to(plugin: Any) -> torch.dtype | None:
    """The dtype of products inside ``training_step``."""
    device = getattr(plugin, "device", "cpu")
    with plugin.forward_context():
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _by_trainer(trainer: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"gradient_accumulation": trainer.accumulate_grad_batches}
    plugin = trainer.precision_plugin
    if isinstance(plugin, MixedPrecision) and plugin.scaler is not None:
        found["loss_scale"] = scale_of(plugin.scaler)
    return found
