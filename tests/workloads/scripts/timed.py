"""A DDP training that times its own backward passes, and prints their seconds at its end."""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--width", type=int, default=512)
options = parser.parse_args()

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
layers = [nn.Linear(options.width, options.width) for _ in range(4)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, options.width)
seconds = []
try:
    for _ in range(options.steps):
        loss = model(batch).pow(2).mean()
        start = time.perf_counter()
        loss.backward()
        seconds.append(time.perf_counter() - start)
        optimizer.step()
        optimizer.zero_grad()
finally:
    if rank == 0:
        print(json.dumps({"backward_seconds": seconds}))
