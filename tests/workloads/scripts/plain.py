"""A training loop of one's own: DDP, FSDP2, or a single process; with or without a scaler."""

from __future__ import annotations

import argparse
import os

import tiny  # type: ignore[import-not-found]
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=["ddp", "fsdp", "alone"], required=True)
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--accumulation", type=int, default=1)
parser.add_argument("--scale", type=float)
parser.add_argument("--wire", choices=["fp32", "bf16"], default="fp32")
parser.add_argument("--optimizers", type=int, default=1)
parser.add_argument("--fail", choices=["bug", "exit", "exit-on-rank-1", "swallow"])
parser.add_argument("--print", type=int, default=0, help="megabytes")
options = parser.parse_args()

rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = tiny.model()
if options.how != "alone":
    dist.init_process_group("gloo")
if options.how == "ddp":
    model = DistributedDataParallel(model)
if options.how == "fsdp":
    reduce = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.wire]
    for layer in (*model, model):
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduce))
parameters = list(model.parameters())
parts = [parameters[index :: options.optimizers] for index in range(options.optimizers)]
optimizers = [torch.optim.AdamW(part, lr=1e-3) for part in parts]
scaler = torch.amp.GradScaler("cpu", init_scale=options.scale or 1.0, enabled=bool(options.scale))
print("x" * 1_000_000 * options.print)

for step in range(options.steps):
    if step == 2 and options.fail == "bug":
        raise ValueError("boom")
    if step == 1 and options.fail in ("exit", f"exit-on-rank-{rank}"):
        raise SystemExit(0)
    for micro in range(options.accumulation):
        loss = tiny.loss(model(tiny.batch(rank, step * options.accumulation + micro)))
        scaler.scale(loss / options.accumulation).backward()
    try:
        for optimizer in optimizers:
            scaler.step(optimizer)
            if step == 1 and options.fail == "swallow":
                (loss / 2).backward()
    except RuntimeError:
        print("never mind")
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()
