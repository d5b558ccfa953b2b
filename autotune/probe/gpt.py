"""The built-in decoder-only transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autotune.workload import Gpt

ROTARY_BASE = 10_000.0  # RoFormer, arXiv 2104.09864, section 3.2
INIT_STD = 0.02  # GPT-2's released code


def rotate(x: Tensor) -> Tensor:
    """Rotary positions for ``x`` of shape (batch, heads, sequence, head size)."""
    length, size = x.shape[-2:]
    inverse = ROTARY_BASE ** (-torch.arange(0, size, 2, device=x.device).float() / size)
    angle = torch.outer(torch.arange(length, device=x.device).float(), inverse)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Attention(nn.Module):
    """Causal self-attention with grouped key and value heads."""

    def __init__(self, config: Gpt) -> None:
        super().__init__()
        self.head_size = config.width // config.heads
        self.rotary = config.style == "llama"
        bias = config.style == "gpt2"
        key_value = config.kv_heads * self.head_size
        self.query = nn.Linear(config.width, config.width, bias=bias)
        self.key = nn.Linear(config.width, key_value, bias=bias)
        self.value = nn.Linear(config.width, key_value, bias=bias)
        self.output = nn.Linear(config.width, config.width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Attends over ``x`` of shape (batch, sequence, width)."""
        heads = (-1, self.head_size)
        query = self.query(x).unflatten(-1, heads).transpose(1, 2)
        key = self.key(x).unflatten(-1, heads).transpose(1, 2)
        value = self.value(x).unflatten(-1, heads).transpose(1, 2)
        if self.rotary:
            query, key = rotate(query), rotate(key)
        grouped = key.shape[1] != query.shape[1]
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=grouped
        )
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out


class SwiGlu(nn.Module):
    """Gated MLP of Llama."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x`` of shape (..., width) to the same shape."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


def mlp(config: Gpt) -> nn.Module:
    """The MLP of one block."""
    hidden = int(config.width * config.mlp_ratio)
    if config.style == "llama":
        return SwiGlu(config.width, hidden)
    return nn.Sequential(
        nn.Linear(config.width, hidden), nn.GELU("tanh"), nn.Linear(hidden, config.width)
    )


def norm(config: Gpt) -> nn.Module:
    """The normalisation layer of the style."""
    return nn.RMSNorm(config.width) if config.style == "llama" else nn.LayerNorm(config.width)


class Block(nn.Module):
    """Pre-norm transformer block: the unit that is sharded and checkpointed."""

    def __init__(self, config: Gpt) -> None:
        super().__init__()
        self.attention_norm = norm(config)
        self.attention = Attention(config)
        self.mlp_norm = norm(config)
        self.mlp = mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x`` of shape (batch, sequence, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Transformer(nn.Module):
    """Decoder-only language model."""

    def __init__(self, config: Gpt) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.width)
        learned = config.style == "gpt2"
        self.positions = nn.Embedding(config.sequence, config.width) if learned else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = norm(config)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.apply(_initialise)
        if config.style == "gpt2":
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of shape (batch, sequence, vocab) for ``tokens`` of shape (batch, sequence)."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
