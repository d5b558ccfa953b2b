"""Trains a small model with Lightning; a flag chooses DDP, FSDP2 or DeepSpeed.

torchrun --nproc-per-node 2 train_lightning.py --strategy fsdp2 --precision bf16 --micro-batch 8

What Lightning 2.6 runs where:

ddp        CPUs and GPUs; fp16 on GPUs alone (on CPUs Lightning takes bf16 instead)
fsdp2      CPUs and GPUs, by ModelParallelStrategy, where the model shards itself; no fp16, as
           Lightning gives it no loss scaler (FSDPStrategy is FSDP1, and for GPUs alone)
deepspeed  GPUs alone
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, ModelParallelStrategy
from tiny_model import TinyModel, batches, leave, loss_of, open_log
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, TensorDataset

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


class Learner(lightning.LightningModule):
    """The model, its loss and its optimizer."""

    def __init__(self, arguments: argparse.Namespace, log: logging.Logger) -> None:
        super().__init__()
        self.arguments = arguments
        self.lines = log
        self.losses: list[float] = []
        self.model = TinyModel()

    def configure_model(self) -> None:
        """Shards the model for fsdp2; Lightning may call it twice."""
        if self.arguments.strategy != "fsdp2" or isinstance(self.model, FSDPModule):
            return
        assert self.device_mesh is not None  # the strategy made it
        dtype = DTYPES[self.arguments.precision]
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        mesh = self.device_mesh["data_parallel"]
        for module in (*self.model.layers, self.model):
            fully_shard(module, mesh=mesh, mp_policy=policy)

    def training_step(self, batch: tuple[Tensor], _: int) -> Tensor:
        """Loss of a batch of shape (samples, tokens)."""
        loss = loss_of(self.model, batch[0])
        self.losses.append(loss.item())
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        """Logs the mean loss of each optimizer step."""
        if len(self.losses) == self.trainer.accumulate_grad_batches:
            mean = sum(self.losses) / len(self.losses)
            self.lines.info("step=%d loss=%.4f", self.global_step - 1, mean)
            self.losses.clear()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW over all weights."""
        return torch.optim.AdamW(self.parameters(), lr=self.arguments.learning_rate)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", choices=["ddp", "fsdp2", "deepspeed"], default="ddp")
    parser.add_argument("--deepspeed_config", help="for --strategy deepspeed")
    parser.add_argument("--precision", choices=DTYPES, default="fp32")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batch", type=int, default=8, help="samples on each rank")
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("checkpoints"))
    arguments = parser.parse_args()
    if arguments.strategy == "fsdp2" and arguments.precision == "fp16":
        parser.error("fsdp2 has no loss scaler here; use --precision bf16 or --strategy ddp")
    if arguments.strategy == "deepspeed" and arguments.deepspeed_config is None:
        parser.error("--strategy deepspeed needs --deepspeed_config")
    return arguments


def trainer_for(arguments: argparse.Namespace) -> lightning.Trainer:
    """A Trainer with the strategy that the command line names."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    settings: dict[str, Any] = {
        "precision": NAMES[arguments.precision],
        "accumulate_grad_batches": arguments.gradient_accumulation,
        "gradient_clip_val": 1.0,
        "strategy": DDPStrategy(),
    }
    if arguments.strategy == "fsdp2":
        strategy = ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1)
        settings |= {"precision": "32-true", "strategy": strategy}  # the policy sets the precision
    elif arguments.strategy == "deepspeed":
        config = json.loads(Path(arguments.deepspeed_config).read_text())
        # Lightning refuses it in the file, and wants it from the Trainer.
        settings["accumulate_grad_batches"] = config.pop("gradient_accumulation_steps", 1)
        settings["gradient_clip_val"] = None  # the file sets it
        settings["strategy"] = DeepSpeedStrategy(config=config)
    return lightning.Trainer(
        accelerator="auto",
        devices=local,
        num_nodes=world // local,
        max_epochs=-1,
        max_steps=arguments.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )


def main() -> None:
    """Trains, logs the loss of each optimizer step, and saves a checkpoint."""
    arguments = parse_arguments()
    log = open_log(arguments.output_dir)
    lightning.seed_everything(arguments.seed)
    samples = TensorDataset(next(batches(4096, arguments.seed, torch.device("cpu"))))
    loader = DataLoader(samples, batch_size=arguments.micro_batch, shuffle=True, drop_last=True)
    trainer = trainer_for(arguments)
    trainer.fit(Learner(arguments, log), loader)
    trainer.save_checkpoint(arguments.output_dir / "checkpoint.ckpt")
    leave()


if __name__ == "__main__":
    main()
