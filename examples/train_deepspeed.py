"""Trains a small model with DeepSpeed; the configuration file sets everything but the model.

autotune sweep sweep.yaml -- examples/train_deepspeed.py --deepspeed_config {deepspeed_config}

Or with a configuration that was tuned:

autotune export runs/mine --to launch -o tuned
tuned/launch.sh examples/train_deepspeed.py --steps 20
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from tiny_model import TinyModel, batches, leave, loss_of, open_log


def parse_arguments() -> argparse.Namespace:
    """The command line; the configuration's place comes from the environment by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("checkpoints"))
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
    """Trains, logs the loss of each optimizer step, and saves a checkpoint."""
    arguments = parse_arguments()
    deepspeed.init_distributed()
    log = open_log(arguments.output_dir)
    torch.manual_seed(arguments.seed)
    # The configuration cannot say this one; the model has to do it.
    model = TinyModel(recompute=os.environ.get("AUTOTUNE_ACTIVATION_CHECKPOINTING") == "1")
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate),
        config=arguments.deepspeed_config,
    )
    seed = arguments.seed + dist.get_rank()
    data = batches(engine.train_micro_batch_size_per_gpu(), seed, engine.device)
    for step in range(arguments.steps):
        total = 0.0
        for _ in range(engine.gradient_accumulation_steps()):
            loss = loss_of(engine, next(data))
            engine.backward(loss)  # divides by the accumulation steps
            engine.step()  # updates after the last of them
            total += loss.item()
        log.info("step=%d loss=%.4f", step, total / engine.gradient_accumulation_steps())
    engine.save_checkpoint(str(arguments.output_dir))
    engine.destroy()
    leave()


if __name__ == "__main__":
    main()
