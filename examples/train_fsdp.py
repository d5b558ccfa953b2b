"""Trains a small model with the FSDP2 module that autotune exported.

autotune export runs/mine --to launch -o tuned
tuned/launch.sh examples/train_fsdp.py --steps 20
"""

from __future__ import annotations

import argparse

import fsdp_setup  # written by autotune; launch.env puts its folder on PYTHONPATH
import torch
import torch.distributed as dist
from tiny_model import Block, TinyModel, batches, join, leave, loss_of


def main() -> None:
    """Trains, and prints the loss of each optimizer step on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()

    device = join()
    torch.manual_seed(0)  # equal weights on all ranks: sharding does not broadcast them
    model = fsdp_setup.shard(TinyModel().to(device), layers=(Block,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = fsdp_setup.scaler(device.type)
    data = batches(fsdp_setup.MICRO_BATCH, dist.get_rank(), device)
    for step in range(arguments.steps):
        total = 0.0
        for _ in range(fsdp_setup.GRADIENT_ACCUMULATION):
            loss = loss_of(model, next(data)) / fsdp_setup.GRADIENT_ACCUMULATION
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), fsdp_setup.GRADIENT_CLIPPING)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step={step} loss={total:.4f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
