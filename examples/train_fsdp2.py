"""Trains a small model with FSDP2; the script shards the model itself.

torchrun --nproc-per-node 2 train_fsdp2.py --precision bf16 --micro-batch 8
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_model import TinyModel, batches, join, leave, loss_of, open_log
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

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
    """Trains, logs the loss of each optimizer step, and saves the weights."""
    arguments = parse_arguments()
    device = join()
    log = open_log(arguments.output_dir)
    torch.manual_seed(arguments.seed)  # equal weights on all ranks: sharding broadcasts none
    model = TinyModel().to(device)
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[arguments.precision], reduce_dtype=torch.float32
    )
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    sharded = fully_shard(model, mp_policy=policy)

    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    scaler = torch.amp.GradScaler(device.type, enabled=arguments.precision == "fp16")
    data = batches(arguments.micro_batch, arguments.seed + dist.get_rank(), device)
    for step in range(arguments.steps):
        total = 0.0
        for micro in range(arguments.gradient_accumulation):
            # The ranks exchange gradients once a step, in the last backward.
            sharded.set_requires_gradient_sync(micro == arguments.gradient_accumulation - 1)
            loss = loss_of(model, next(data)) / arguments.gradient_accumulation
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        log.info("step=%d loss=%.4f", step, total)

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)  # all of them on rank 0, none elsewhere
    if dist.get_rank() == 0:
        torch.save(weights, arguments.output_dir / "checkpoint.pt")
    leave()


if __name__ == "__main__":
    main()
