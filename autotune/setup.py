"""A setup: one complete training configuration, frozen and hashable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Backend = Literal["deepspeed", "fsdp", "ddp"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
WireDtype = Literal["fp32", "bf16", "fp16"]
Scaler = Literal["deepspeed", "deepspeed-stage-0", "grad-scaler"]

BACKENDS: tuple[Backend, ...] = get_args(Backend)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
WIRE_DTYPES: tuple[WireDtype, ...] = get_args(WireDtype)
DTYPE_BYTES: Mapping[WireDtype, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """Dynamic fp16 loss scaling.

    Attributes:
        initial_power: The first scale is ``2 ** initial_power``.
        window: Steps without overflow after which the scale doubles.
        hysteresis: Overflows that are tolerated before the scale halves (DeepSpeed only;
            1 where the scaler has no such rule).
        minimum: Floor of the scale; 0 where the scaler has none (``torch.amp.GradScaler``).
    """

    initial_power: int = 16
    window: int = 1000
    hysteresis: int = 2
    minimum: int = 1


def scaler_of(backend: Backend, zero_stage: int) -> Scaler:
    """Whose rules update the loss scale: ZeRO's, those of DeepSpeed's stage 0, or torch's."""
    if backend != "deepspeed":
        return "grad-scaler"
    return "deepspeed" if zero_stage > 0 else "deepspeed-stage-0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One complete training configuration.

    A knob that does not exist for the backend or the hardware is ``None``, so two setups are
    equal exactly when they train the same way.

    Attributes:
        backend: The library that shards and reduces.
        precision: Compute dtype of forward and backward; master weights stay fp32.
        grad_comm_dtype: Dtype of the gradients while they are reduced between ranks.
        zero_stage: DeepSpeed's ZeRO stage. FSDP2 has 2 (parameters stay gathered after the
            forward) and 3 (they are sharded again); DDP has 0.
        bucket_bytes: Bytes a gradient bucket holds on the wire.
        overlap_comm: Whether reduction overlaps the backward pass.
        activation_checkpointing: Whether each layer recomputes its forward in the backward.
        micro_batch: Samples in one backward call on one rank.
        gradient_accumulation: Backward calls in one optimizer step.
        loss_scale: Loss scaling of fp16.
    """

    backend: Backend
    precision: Precision
    grad_comm_dtype: WireDtype
    zero_stage: int
    bucket_bytes: int | None
    overlap_comm: bool | None
    activation_checkpointing: bool
    micro_batch: int
    gradient_accumulation: int
    loss_scale: LossScale | None

    @property
    def key(self) -> str:
        """Canonical name: equal for equal setups, different for different ones.

        It holds every knob and is safe in file names and shells.
        """
        parts = [
            self.backend,
            f"z{self.zero_stage}",
            self.precision,
            f"wire-{self.grad_comm_dtype}",
            f"mb{self.micro_batch}x{self.gradient_accumulation}",
        ]
        if self.bucket_bytes is not None:
            parts.append(f"bucket{self.bucket_bytes}")
        if self.overlap_comm is not None:
            parts.append("overlap" if self.overlap_comm else "no-overlap")
        if self.activation_checkpointing:
            parts.append("ckpt")
        if self.loss_scale is not None:
            scale = self.loss_scale
            values = (scale.initial_power, scale.window, scale.hysteresis, scale.minimum)
            parts.append("scale" + "-".join(str(value) for value in values))
        return ".".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Every knob, as JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, knobs: Mapping[str, Any]) -> Setup:
        """The inverse of `to_dict`."""
        scale = knobs["loss_scale"]
        return cls(**{**knobs, "loss_scale": None if scale is None else LossScale(**scale)})
