"""A training by transformers' Trainer, with or without DeepSpeed."""

from __future__ import annotations

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=32,
)
torch.manual_seed(0)
rows = torch.randint(64, (400, 16))
arguments = TrainingArguments(
    "out",
    max_steps=50,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    max_grad_norm=0.5,
    save_steps=5,
    report_to=[],
    use_cpu=True,
    deepspeed=sys.argv[1] if len(sys.argv) > 1 else None,
)
data = [{"input_ids": row, "labels": row} for row in rows]
Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=data).train()
