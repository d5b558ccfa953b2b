"""Trains a small model with accelerate; its configuration file chooses DeepSpeed, FSDP2 or DDP.

accelerate launch --config_file accelerate.yaml train_accelerate.py --micro-batch 8
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from tiny_model import TinyModel, accelerate_on_cpu, batches, leave, loss_of, open_log
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


def parse_arguments() -> argparse.Namespace:
    """The command line; precision and sharding stand in accelerate's configuration file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batch", type=int, default=8, help="samples on each rank")
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("checkpoints"))
    return parser.parse_args()


def endless(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[Tensor]:
    """Batches of shape (samples, tokens), one epoch after the other."""
    while True:
        for (tokens,) in loader:
            yield tokens


def main() -> None:
    """Trains, logs the loss of each optimizer step, and saves a checkpoint."""
    arguments = parse_arguments()
    accelerate_on_cpu()
    accelerator = Accelerator(gradient_accumulation_steps=arguments.gradient_accumulation)
    log = open_log(arguments.output_dir)
    set_seed(arguments.seed)

    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    samples = TensorDataset(next(batches(4096, arguments.seed, torch.device("cpu"))))
    loader = DataLoader(samples, batch_size=arguments.micro_batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    losses: list[float] = []
    step = 0
    for tokens in endless(loader):
        with accelerator.accumulate(model):
            loss = loss_of(model, tokens)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if not accelerator.sync_gradients:
            continue
        log.info("step=%d loss=%.4f", step, sum(losses) / len(losses))
        losses.clear()
        step += 1
        if step == arguments.steps:
            break

    accelerator.save_state(str(arguments.output_dir))
    leave()


if __name__ == "__main__":
    main()
