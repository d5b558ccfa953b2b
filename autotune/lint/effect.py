"""What a file effectively does, aspect by aspect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

By = Literal["file", "default", "script", "version", "unclear"]
Aspect = Literal[
    "precision", "wire", "accumulation", "sharding", "prefetch", "buckets", "scaler", "batch"
]
SCRIPT = "the script decides"


@dataclass(frozen=True, slots=True)
class Effect:
    """One aspect.

    Attributes:
        aspect: Which one.
        value: As JSON types, in the words of a setup where it has them; None where it is open.
        by: Who says so: the file, a default, the script, the version of the library; or that it
            cannot be told from the file.
        text: In words.
    """

    aspect: Aspect
    value: Any
    by: By
    text: str


def loss_scale_text(scale: Mapping[str, int]) -> str:
    """A dynamic loss scale in words."""
    hysteresis = scale.get("hysteresis")
    tolerates = f", falls at overflow {hysteresis}" if hysteresis else ", falls at once"
    floor = f", not below {scale['minimum']}" if "minimum" in scale else ", without a floor"
    return (
        f"dynamic from 2^{scale['initial_power']}, doubles after {scale['window']} clean steps"
        f"{tolerates}{floor}"
    )


def grad_scaler() -> Effect:
    """Torch's own scaler, of which no file says anything."""
    scale = {"initial_power": 16, "window": 2000}
    text = (
        "torch.amp.GradScaler: 2^16, doubles after 2000 clean steps, halves at once, without a "
        "floor; only code can change it"
    )
    return Effect("scaler", scale, "default", text)


def scaler(precision: str | None) -> Iterator[Effect]:
    """Torch's scaler, where fp16 is or may be on."""
    if precision == "fp16":
        yield grad_scaler()
    elif precision is None:
        yield Effect("scaler", None, "script", "torch.amp.GradScaler with fp16, else none")
    else:
        yield Effect("scaler", None, "default", "none")


def size_text(size: int) -> str:
    """Bytes as people read them."""
    number = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
