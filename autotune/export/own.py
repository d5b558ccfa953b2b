"""The export of each backend's own configuration, which the other dialects build on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.export.ddp import export_ddp
from autotune.export.deepspeed import export_deepspeed
from autotune.export.exported import Exported
from autotune.export.fsdp import export_fsdp
from autotune.export.subject import Subject
from autotune.setup import Backend

CONFIGURATIONS: Mapping[Backend, Callable[[Subject], Exported]] = {
    "deepspeed": export_deepspeed,
    "fsdp": export_fsdp,
    "ddp": export_ddp,
}
MODULES: Mapping[Backend, str] = {"fsdp": "fsdp_setup", "ddp": "ddp_setup"}
"""Backends whose configuration is a Python module with an ``install()``."""


def export_own(subject: Subject) -> Exported:
    """The configuration of the setup's own backend."""
    return CONFIGURATIONS[subject.setup.backend](subject)
