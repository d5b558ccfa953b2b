"""The training libraries: how their setups are written, and what they cannot train."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.backends.ddp import DDP
from autotune.backends.deepspeed import DEEPSPEED
from autotune.backends.dialect import Dialect
from autotune.backends.fsdp import FSDP
from autotune.setup import Backend, Setup
from autotune.space import Restriction

__all__ = ["BACKENDS_BY_NAME", "RESTRICTIONS", "Dialect", "backend_of"]

BACKENDS_BY_NAME: Mapping[Backend, Dialect] = {"deepspeed": DEEPSPEED, "fsdp": FSDP, "ddp": DDP}
RESTRICTIONS: tuple[Restriction, ...] = tuple(
    restriction for backend in BACKENDS_BY_NAME.values() for restriction in backend.restrictions
)
"""Of all backends; each refuses setups of its own backend only."""


def backend_of(setup: Setup) -> Dialect:
    """How the setup's backend writes it down."""
    return BACKENDS_BY_NAME[setup.backend]
