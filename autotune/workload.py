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


HfTask = Literal["causal-lm", "masked-lm", "seq2seq-lm", "image-classification"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hf:
    """A model that transformers builds from its configuration.

    Attributes:
        path: Folder with a ``config.json``, and perhaps weights; or that file. Absolute.
        task: What it is trained for; None to take it from the configuration.
        sequence: Tokens in a sample; None for what the model and the data allow, at most 512.
        data: Tokenised file, ``.npy``, ``.bin`` or ``.parquet``, absolute; None for random batches.
        data_dtype: Integers of a ``.bin`` file, such as ``uint16``.
        data_column: Column of a ``.parquet`` file.
        layers: Names of the layer classes to shard and to checkpoint; empty to ask the model.
    """

    path: str
    task: HfTask | None = None
    sequence: int | None = None
    data: str | None = None
    data_dtype: str = "uint16"
    data_column: str = "input_ids"
    layers: tuple[str, ...] = ()


ScriptLauncher = Literal["torchrun", "accelerate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The user's own training script, run unchanged, once a probe.

    Attributes:
        command: Script and its arguments, with placeholders such as ``{deepspeed_config}``.
        launcher: What starts it.
        folder: Folder that the user starts it from; absolute.
    """

    command: tuple[str, ...]
    launcher: ScriptLauncher = "torchrun"
    folder: str = "."


Model = Gpt | PythonFactory | Hf | Script


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Model and batches that the probes train.

    Attributes:
        model: Where the model comes from.
        micro_batch: Samples a rank and a backward call, as the user trains today.
        gradient_accumulation: Backward calls a step, as the user trains today.
        seed: Seed of weights (equal on all ranks) and of batches (offset by the rank).
    """

    model: Model
    micro_batch: int
    gradient_accumulation: int
    seed: int = 0

    @property
    def samples_per_rank(self) -> int:
        """Samples one rank contributes to one optimizer step; the same for every setup."""
        return self.micro_batch * self.gradient_accumulation
