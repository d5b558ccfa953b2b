"""Trains a small model with DistributedDataParallel, autocast and a gradient scaler.

torchrun --nproc-per-node 2 train_ddp.py --precision bf16 --micro-batch 8
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_model import TinyModel, batches, join, leave, loss_of, open_log
from torch.nn.parallel import DistributedDataParallel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=DTYPES, default="fp32")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batch", type=int, default=8, help="samples on each rank")
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("checkpoints"))
    return parser.parse_args()


def main() -> None:
    """Trains, logs the loss of each optimizer step, and saves a checkpoint."""
    arguments = parse_arguments()
    device = join()
    log = open_log(arguments.output_dir)
    torch.manual_seed(arguments.seed)
    model = DistributedDataParallel(
        TinyModel().to(device), device_ids=[device.index] if device.type == "cuda" else None
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    scaler = torch.amp.GradScaler(device.type, enabled=arguments.precision == "fp16")
    mixed = arguments.precision != "fp32"
    data = batches(arguments.micro_batch, arguments.seed + dist.get_rank(), device)
    for step in range(arguments.steps):
        total = 0.0
        for micro in range(arguments.gradient_accumulation):
            last = micro == arguments.gradient_accumulation - 1
            # The ranks exchange gradients once a step, in the last backward.
            with nullcontext() if last else model.no_sync():
                with torch.autocast(device.type, DTYPES[arguments.precision], enabled=mixed):
                    loss = loss_of(model, next(data)) / arguments.gradient_accumulation
                scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        log.info("step=%d loss=%.4f", step, total)

    if dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, arguments.output_dir / "checkpoint.pt")
    leave()


if __name__ == "__main__":
    main()
