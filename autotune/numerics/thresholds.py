"""The gates' limits as data: what each number means, where it comes from, who may change it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from autotune.setup import Precision, Setup

GateName = Literal[
    "finite-forward",
    "activation-headroom",
    "skipped-steps",
    "underflow",
    "gain",
    "relative-error",
    "cosine",
    "worst-tensor",
    "same-gradient",
    "weights-move",
    "gradient-norm",
    "loss-band",
    "wire-error",
]
Unit = Literal["ratio", "share", "bits", "steps"]

GATES: tuple[GateName, ...] = get_args(GateName)
LARGEST_FP16 = 65504.0
SMALLEST_FP16 = 2.0**-24
WARNED_FRACTION = 0.05
"""Share of elements lost to underflow that is worth a warning when their norm is small.

Micikevicius et al. (2018), Mixed precision training, arXiv 1710.03740: about 5 % of the weight
gradients of a speech model lie below the smallest number of fp16.
"""
SIGMAS = 3.0
"""Spreads of the fp32 runs within which a loss is that of fp32."""

_OWN = "chosen here"
_GPT = "measured on a small GPT"
_SCALED = "https://github.com/deepspeedai/DeepSpeed/pull/8393"
_HALF = "https://github.com/huggingface/transformers/issues/5651"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """What one gate demands.

    Attributes:
        gate: Its name.
        limit: Number beyond which a setup is refused: one for all, or by the coarsest dtype that
            the gradient passes through. None where the gate has no number of its own.
        slack: The gate warns from this part of the limit on: over ``limit / slack``. 1 where it
            does not warn.
        unit: Of the limit.
        meaning: One sentence on what is compared.
        source: Where the limit comes from.
    """

    gate: GateName
    limit: float | Mapping[Precision, float] | None
    slack: float = 1.0
    unit: Unit
    meaning: str
    source: str

    def limit_for(self, setup: Setup) -> float | None:
        """The limit for one setup. The coarsest dtype on the gradient's way has the largest."""
        if not isinstance(self.limit, Mapping):
            return self.limit
        return max(self.limit[setup.precision], self.limit[setup.grad_comm_dtype])


_RELATIVE_ERRORS: Mapping[Precision, float] = MappingProxyType(
    {"fp32": 5e-4, "tf32": 5e-3, "fp16": 1.5e-2, "bf16": 1e-1}
)

_TABLE = (
    Threshold(
        gate="finite-forward",
        limit=None,
        unit="ratio",
        meaning="loss and activations are finite without loss scaling, which cannot mend them",
        source=_HALF,
    ),
    Threshold(
        gate="activation-headroom",
        limit=2.0,
        unit="bits",
        meaning="log2 of the largest number of fp16 over the largest activation, at least",
        source=f"{_OWN}: activations grow while a model trains; overflow as in {_HALF}",
    ),
    Threshold(
        gate="skipped-steps",
        limit=None,
        unit="steps",
        meaning="steps skipped for overflow: not all, and no more than the loss scaler's rule "
        "explains",
        source="https://github.com/deepspeedai/DeepSpeed/issues/8415",
    ),
    Threshold(
        gate="underflow",
        limit=1e-3,
        unit="ratio",
        meaning="norm of the gradients that became zero, over the whole norm, at most",
        source=f"{_GPT}: fp16 without loss scaling loses 2e-5",
    ),
    Threshold(
        gate="gain",
        limit=0.01,
        unit="ratio",
        meaning="distance from 1 of the applied gradient's length along that of fp32, at most",
        source=_SCALED,
    ),
    Threshold(
        gate="relative-error",
        limit=_RELATIVE_ERRORS,
        slack=5.0,
        unit="ratio",
        meaning="norm of the applied gradient minus that of fp32, over the latter, at most",
        source=f"{_GPT}: fp32 1e-6 (order of summation), fp16 1e-3, bf16 8e-3; TF32 products "
        "2.9e-4, https://github.com/ml-explore/mlx/issues/3860",
    ),
    Threshold(
        gate="cosine",
        limit=1e-3,
        unit="ratio",
        meaning="1 minus the cosine between the applied gradient and that of fp32, at most",
        source=f"{_GPT}: bf16 3e-5, fp16 1e-7",
    ),
    Threshold(
        gate="worst-tensor",
        limit=0.1,
        unit="ratio",
        meaning="relative error of the gradient of the worst single tensor, at most",
        source=f"{_GPT}: bf16 3.4e-2",
    ),
    Threshold(
        gate="same-gradient",
        limit=None,
        unit="ratio",
        meaning="gain and relative error against a setup that differs in sharding alone, with "
        "the limits of these gates",
        source="https://github.com/deepspeedai/DeepSpeed/issues/4298",
    ),
    Threshold(
        gate="weights-move",
        limit=0.5,
        unit="share",
        meaning="weights with a gradient that an applied step changes, at least",
        source=f"{_GPT} with bf16 weights alone: 34% move at learning rate 3e-4, 1.2% at 1e-5",
    ),
    Threshold(
        gate="gradient-norm",
        limit=0.05,
        unit="ratio",
        meaning="of scripts: distance from 1 of the applied gradient's norm over that of the "
        "reference, over the first steps, at most; or 3 sigma of the reference's own runs",
        source=_SCALED,
    ),
    Threshold(
        gate="loss-band",
        limit=0.005,
        unit="share",
        meaning="distance of the loss at the end of a short run from that of fp32, over the "
        "latter, at most; or 3 sigma of fp32 runs in other orders where that is more",
        source=f"{_OWN}; 5e-4 after 100 steps is fine in "
        "https://github.com/NVIDIA/Megatron-LM/pull/3067",
    ),
    Threshold(
        gate="wire-error",
        limit=0.05,
        slack=5.0,
        unit="share",
        meaning="predicted error of a gradient that a ring of the real run's ranks adds up, at "
        "most",
        source=f"{_OWN}; bf16 sums fine on 96 ranks and not on 384 in "
        "https://github.com/pytorch/pytorch/issues/106395",
    ),
)

THRESHOLDS: Mapping[GateName, Threshold] = MappingProxyType({item.gate: item for item in _TABLE})
NUMBERED: tuple[GateName, ...] = tuple(gate for gate in GATES if THRESHOLDS[gate].limit is not None)
"""Gates with a number that a user may change."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The numbers of one gate for one setup.

    Attributes:
        limit: The setup is refused beyond it.
        warn: It is warned of beyond it; equal to ``limit`` where the gate does not warn.
        changed: Whether the limit is the user's, not the default.
    """

    limit: float
    warn: float
    changed: bool


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits of a sweep.

    Attributes:
        user: Limits that the user has given, by gate.
    """

    user: Mapping[str, float]

    @classmethod
    def default(cls) -> Thresholds:
        """Those of `THRESHOLDS`."""
        return cls({})

    def with_user(self, limits: Mapping[str, float]) -> Thresholds:
        """These, with other limits for the gates of `NUMBERED` that ``limits`` names.

        One number stands for all dtypes; the gate warns from the same part of it as before.
        """
        assert set(limits) <= set(NUMBERED), limits
        assert all(math.isfinite(limit) and limit >= 0 for limit in limits.values()), limits
        return Thresholds({**self.user, **limits})

    def bound(self, gate: GateName, setup: Setup) -> Bound:
        """The numbers of a gate of `NUMBERED`."""
        threshold = THRESHOLDS[gate]
        default = threshold.limit_for(setup)
        assert default is not None, gate
        limit = self.user.get(gate, default)
        return Bound(limit, limit / threshold.slack, limit != default)


def show_number(value: float, unit: Unit) -> str:
    """A value for people: ``1.2%``, ``3 bits``, ``0.0312``."""
    if not math.isfinite(value):
        return "not finite"
    if unit == "share":
        return f"{100 * value:.3g}%"
    return f"{value:.3g} bits" if unit == "bits" else f"{value:.3g}"
