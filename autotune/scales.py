"""The loss scales that a sweep may try. They leave no trace in step times and are never probed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autotune.setup import LossScale, Scaler

SCALE_FIELDS = ("initial_power", "window", "hysteresis", "minimum")
DEFAULTS: Mapping[Scaler, LossScale] = {
    "deepspeed": LossScale(),
    "deepspeed-stage-0": LossScale(hysteresis=1),
    "grad-scaler": LossScale(window=2000, hysteresis=1, minimum=0),
}
"""What DeepSpeed's ``fp16`` section and ``torch.amp.GradScaler`` take when nothing is said."""

DEFAULT_SCALE_AXES: Mapping[str, tuple[int, ...]] = {
    "initial_power": tuple(range(33)),
    "window": (100, 250, 500, 1000, 2000),
    "hysteresis": (1, 2, 4),
    "minimum": (1, 16),
}
"""What an absent field of ``loss_scale`` takes; always with the framework's own value."""


def fitted(scale: LossScale, scaler: Scaler) -> LossScale:
    """The scale without what the scaler does not have, so that equal policies are equal.

    DeepSpeed ignores the hysteresis at stage 0; ``torch.amp.GradScaler`` has neither hysteresis
    nor floor.
    """
    if scaler == "grad-scaler":
        return replace(scale, hysteresis=1, minimum=0)
    return replace(scale, hysteresis=1) if scaler == "deepspeed-stage-0" else scale


def scale_values(listed: Mapping[str, tuple[Any, ...]], scaler: Scaler) -> dict[str, list[int]]:
    """Values of each field, the framework's own first where it is among them.

    Args:
        listed: As the sweep file lists them; an absent field takes the default list.
        scaler: Whose rules apply.
    """
    usual = DEFAULTS[scaler]
    values = {}
    for name in SCALE_FIELDS:
        own = getattr(usual, name)
        found = listed.get(name) or (own, *DEFAULT_SCALE_AXES[name])
        values[name] = sorted(set(found), key=lambda value: (value != own, value))
    return values


def first_scale(listed: Mapping[str, tuple[Any, ...]], scaler: Scaler) -> LossScale:
    """The framework's own where the lists allow it: what is probed before any is chosen.

    Where every policy starts below its floor, one of these: a restriction tells of it.
    """
    usable = (scale for scale in _combinations(listed, scaler) if _starts_above_floor(scale))
    return next(usable, next(_combinations(listed, scaler)))


def all_scales(listed: Mapping[str, tuple[Any, ...]], scaler: Scaler) -> list[LossScale]:
    """Every policy, once each; none that starts below its own floor."""
    found = dict.fromkeys(_combinations(listed, scaler))
    return [scale for scale in found if _starts_above_floor(scale)]


def _combinations(listed: Mapping[str, tuple[Any, ...]], scaler: Scaler) -> Iterator[LossScale]:
    values = scale_values(listed, scaler)
    for chosen in itertools.product(*values.values()):
        yield fitted(LossScale(**dict(zip(values, chosen, strict=True))), scaler)


def _starts_above_floor(scale: LossScale) -> bool:
    return bool(2**scale.initial_power >= scale.minimum)
