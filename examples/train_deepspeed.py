"""Trains a small model with the DeepSpeed configuration that autotune exported.

autotune export runs/mine --to launch -o tuned
tuned/launch.sh examples/train_deepspeed.py --steps 20
"""

from __future__ import annotations

import argparse
import os

import deepspeed
import torch
import torch.distributed as dist
from tiny_model import TinyModel, batches, leave, loss_of


def parse_arguments() -> argparse.Namespace:
    """The command line; the configuration's place comes from the environment by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--deepspeed_config",
        default=os.environ.get("AUTOTUNE_DEEPSPEED_CONFIG"),
        help="default: $AUTOTUNE_DEEPSPEED_CONFIG",
    )
    arguments = parser.parse_args()
    if arguments.deepspeed_config is None:
        parser.error("name a configuration: --deepspeed_config or $AUTOTUNE_DEEPSPEED_CONFIG")
    return arguments


def main() -> None:
    """Trains, and prints the loss of each optimizer step on rank 0."""
    arguments = parse_arguments()
    deepspeed.init_distributed()
    torch.manual_seed(0)
    # The configuration cannot say this one; the model has to do it.
    model = TinyModel(recompute=os.environ.get("AUTOTUNE_ACTIVATION_CHECKPOINTING") == "1")
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
        config=arguments.deepspeed_config,
    )
    data = batches(engine.train_micro_batch_size_per_gpu(), dist.get_rank(), engine.device)
    for step in range(arguments.steps):
        total = 0.0
        for _ in range(engine.gradient_accumulation_steps()):
            loss = loss_of(engine, next(data))
            engine.backward(loss)  # divides by the accumulation steps
            engine.step()  # updates after the last of them
            total += loss.item()
        if dist.get_rank() == 0:
            mean = total / engine.gradient_accumulation_steps()
            print(f"step={step} loss={mean:.4f}", flush=True)
    engine.destroy()
    leave()


if __name__ == "__main__":
    main()
