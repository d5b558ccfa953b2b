"""A small causal transformer and a task that it learns in a few steps."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCABULARY = 32
SEQUENCE = 32


class Block(nn.Module):
    """Attention and MLP, each behind a norm and around a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Shapes in and out: (samples, tokens, width)."""
        samples, tokens, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(samples, tokens, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(samples, tokens, width))
        out: Tensor = x + self.mlp(self.norms[1](x))
        return out


class TinyModel(nn.Module):
    """Token embedding, blocks, and a linear head."""

    def __init__(
        self, width: int = 64, heads: int = 4, layers: int = 2, *, recompute: bool = False
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (samples * tokens, vocabulary) of the next token."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        logits: Tensor = self.head(x.flatten(0, 1))
        return logits


def batches(samples: int, seed: int, device: torch.device) -> Iterator[Tensor]:
    """Endless token batches (samples, SEQUENCE + 1) in which each token gives the next one."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        columns = [torch.randint(VOCABULARY, (samples,), generator=generator)]
        for _ in range(SEQUENCE):
            columns.append((5 * columns[-1] + 3) % VOCABULARY)
        yield torch.stack(columns, dim=1).to(device)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, in float32 whatever the model computes in."""
    logits = model(tokens[:, :-1]).float()
    return functional.cross_entropy(logits, tokens[:, 1:].flatten())


def join() -> torch.device:
    """Joins the other ranks; returns this rank's device."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def accelerate_on_cpu() -> None:
    """Lets accelerate use DeepSpeed and FSDP2 between CPU ranks; with a GPU it does nothing.

    accelerate 1.15 joins no process group on CPUs unless it is told to, and then knows DDP only.
    """
    if torch.cuda.is_available():
        return
    from accelerate import DistributedType, PartialState

    state = PartialState(cpu=True)
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        state.distributed_type = DistributedType.MULTI_GPU


def open_log(folder: Path) -> logging.Logger:
    """Makes the folder and a logger that writes to ``train.log`` in it and to standard output.

    All ranks but the first stay silent.
    """
    logger = logging.getLogger("train")
    logger.propagate = False
    if int(os.environ.get("RANK", "0")) == 0:
        folder.mkdir(parents=True, exist_ok=True)
        logger.setLevel(logging.INFO)
        logger.addHandler(logging.StreamHandler(sys.stdout))
        logger.addHandler(logging.FileHandler(folder / "train.log"))
    return logger


def leave() -> None:
    """Leaves the process group, at the end of a script."""
    dist.barrier()
    dist.destroy_process_group()
    if not torch.cuda.is_available():
        # gloo's threads free the tensors of the last collectives on their own time, and a
        # Python that ends meanwhile aborts (torch 2.13).
        time.sleep(1)
