"""A user's own configuration file as a baseline: read, understood or refused, and carried on."""

from __future__ import annotations

from autotune.configs.accelerate import read_accelerate
from autotune.configs.carry import carry
from autotune.configs.deepspeed import read_deepspeed
from autotune.configs.settle import settle
from autotune.configs.understood import Inert, Refused, Understood

__all__ = [
    "Inert",
    "Refused",
    "Understood",
    "carry",
    "read_accelerate",
    "read_deepspeed",
    "settle",
]
