"""Made-up readings of sound setups."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune.readings import Exposure, GradientReading, GradientSample, Reading, ScaleTrace
from autotune.request import Ask


def make_gradient_reading(**changes: Any) -> GradientReading:
    """A gradient as bf16 gives it, and a run that learns like fp32."""
    losses = tuple(3.0 - 0.02 * step for step in range(20))
    sound: dict[str, Any] = {
        "loss_finite": True,
        "activation_absmax": 10.0,
        "activation_module": "layers.1",
        "skipped_tries": 0,
        "gain": 1.0005,
        "relative_error": 0.008,
        "cosine": 0.99997,
        "worst_tensor": "layers.0.weight",
        "worst_tensor_error": 0.02,
        "underflow_fraction": 0.001,
        "underflow_norm": 1e-4,
        "reference_norm": 1.5,
        "moved_fraction": 0.99,
        "applied_steps": 20,
        "skipped_steps": 0,
        "losses": losses,
        "reference_losses": losses,
        "permuted_losses": (losses, losses, losses),
        "sibling": None,
    }
    return GradientReading(**{**sound, **changes})


def make_trace(power: int = 14, steps: int = 40, **changes: Any) -> ScaleTrace:
    """Gradients whose largest finite scale is always 2 ** power; around 2 ** -10."""
    return ScaleTrace(
        **{
            "finite_powers": (power,) * steps,
            "absmax_log2": (-4.0,) * steps,
            "lowest_bin": -12,
            "counts": (1000, 5000, 1000),
            "squares": (1.0, 20.0, 16.0),
            **changes,
        }
    )


def make_sample(micro_batches: int = 16, elements: int = 500) -> GradientSample:
    """Gradients whose mean is about a third of their spread, as in a real model."""
    chance = np.random.default_rng(0)
    values = 0.3 * chance.normal(size=elements) + chance.normal(size=(micro_batches, elements))
    data = base64.b64encode(values.astype("<f4").tobytes()).decode()
    return GradientSample(micro_batches=micro_batches, elements=elements, data=data)


def make_exposure(exposed: float = 0.3, pairs: int = 16) -> Exposure:
    """A backward of 10 ms, of which ``exposed`` is the wait for communication."""
    jitter = [1 + 0.01 * (-1) ** pair for pair in range(pairs)]
    return Exposure(
        synced_seconds=tuple(0.01 * item for item in jitter),
        unsynced_seconds=tuple(0.01 * (1 - exposed) for _ in jitter),
    )


READINGS: Mapping[Ask, Reading] = {
    "gradient": make_gradient_reading(),
    "trace": make_trace(),
    "sample": make_sample(),
    "exposure": make_exposure(),
}
