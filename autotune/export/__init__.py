"""Writes a measured setup in the dialect that a training script reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError
from autotune.export.ddp import export_ddp
from autotune.export.deepspeed import export_deepspeed
from autotune.export.exported import Exported, Note, Provenance, write
from autotune.export.fsdp import export_fsdp
from autotune.export.launch import export_launch
from autotune.export.script import export_script, single
from autotune.outcome import Probe
from autotune.setup import BACKENDS, Backend
from autotune.workload import Script

__all__ = ["DIALECTS", "Exported", "Note", "Provenance", "export", "write"]

LAUNCH = "launch"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One value of ``--to``.

    Attributes:
        backends: Whose setups it can say.
        export: Makes the files of a probe's setup; the last argument is the user's folder of
            templates.
    """

    backends: tuple[Backend, ...]
    export: Callable[[Probe, Provenance, Path | None], Exported]


DIALECTS: Mapping[str, Dialect] = {
    "deepspeed": Dialect(("deepspeed",), export_deepspeed),
    "fsdp": Dialect(("fsdp",), export_fsdp),
    "ddp": Dialect(("ddp",), export_ddp),
    LAUNCH: Dialect(BACKENDS, export_launch),
}


def export(
    probe: Probe,
    to: str,
    provenance: Provenance,
    templates: Path | None = None,
    script: Script | None = None,
) -> Exported:
    """Says a measured setup in another dialect. The configuration is the text that ran.

    Args:
        probe: A probe of the setup.
        to: Name of the dialect: ``deepspeed``, ``fsdp``, ``ddp`` or ``launch``.
        provenance: Written into the files.
        templates: Folder of the user's own templates.
        script: What the probe ran, if it was the user's script.

    Raises:
        UsageError: There is no such dialect, or it cannot say setups of this backend.
    """
    backend = probe.setup.backend
    fitting = " or ".join(name for name, item in DIALECTS.items() if backend in item.backends)
    dialect = DIALECTS.get(to)
    if dialect is None:
        raise UsageError(f"There is no dialect {to!r}; use --to {fitting}.")
    if backend not in dialect.backends:
        raise UsageError(
            f"The setup {probe.setup.key} trains with {backend}, which --to {to} cannot say; "
            f"use --to {fitting}."
        )
    if script is None:
        return dialect.export(probe, provenance, templates)
    if to == LAUNCH:
        return export_script(probe, provenance, templates, script)
    return dialect.export(single(probe), provenance, templates)
