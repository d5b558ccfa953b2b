"""A training loop on DeepSpeed's engine."""

from __future__ import annotations

import argparse

import deepspeed
import tiny  # type: ignore[import-not-found]
import torch
from deepspeed.accelerator import get_accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed_config", required=True)
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--by-tensor", action="store_true", help="loss.backward() in place of engine's")
parser.add_argument("--pretend-fp16", action="store_true", help="the CPU has no kernels for it")
options = parser.parse_args()

if options.pretend_fp16:
    get_accelerator().is_fp16_supported = lambda: True
torch.manual_seed(0)
model = tiny.model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=options.deepspeed_config)
dtype = next(engine.module.parameters()).dtype
micro_batches = options.steps * engine.gradient_accumulation_steps()
for number in range(micro_batches):
    loss = tiny.loss(engine(tiny.batch(engine.global_rank, number).to(dtype)))
    if options.by_tensor:
        engine.scale(loss).backward()
    else:
        engine.backward(loss)
    engine.step()
