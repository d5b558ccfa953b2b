"""What the probes train: model, batches and loss, described without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt:
    """The built-in decoder-only transformer on random tokens.

    Attributes:
        layers: Transformer blocks.
        width: Model dimension; a multiple of ``heads``.
        heads: Query heads.
        kv_heads: Key and value heads; divides ``heads``.
        vocab: Vocabulary entries.
        sequence: Tokens in a sample.
        mlp_ratio: Hidden size of the MLP over ``width``.
        style: ``llama`` (RMSNorm, rotary positions, SwiGLU) or ``gpt2`` (LayerNorm, learned
            positions, GELU, tied embeddings).
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    vocab: int
    sequence: int
    mlp_ratio: float
    style: Literal["llama", "gpt2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFactory:
    """The user's own factory, called in each rank.

    Attributes:
        path: ``package.module:factory``.
        args: Keyword arguments from the sweep file.
        folder: Folder put on ``sys.path`` first: the one that holds the sweep file.
    """

    path: str
    args: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Model and batches that the probes train.

    Attributes:
        model: Where the model comes from.
        micro_batch: Samples a rank and a backward call, as the user trains today.
        gradient_accumulation: Backward calls a step, as the user trains today.
        seed: Seed of weights (equal on all ranks) and of batches (offset by the rank).
    """

    model: Gpt | PythonFactory
    micro_batch: int
    gradient_accumulation: int
    seed: int = 0

    @property
    def samples_per_rank(self) -> int:
        """Samples one rank contributes to one optimizer step; the same for every setup."""
        return self.micro_batch * self.gradient_accumulation
