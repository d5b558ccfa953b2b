"""Writes a setup in the dialect that a training script or its launcher reads."""

from __future__ import annotations

from autotune.errors import UsageError
from autotune.export.dialects import DIALECTS, Dialect, fitting
from autotune.export.exported import Exported, Note, write
from autotune.export.provenance import Provenance, Unmeasured
from autotune.export.subject import Subject, subject_of
from autotune.export.verify import Difference, compare

__all__ = [
    "DIALECTS",
    "Dialect",
    "Difference",
    "Exported",
    "Note",
    "Provenance",
    "Subject",
    "Unmeasured",
    "compare",
    "export",
    "fitting",
    "subject_of",
    "write",
]


def export(subject: Subject, to: str) -> Exported:
    """Says a setup in a dialect. Where it was measured, the configuration is the text that ran.

    Args:
        subject: The setup and where it is from.
        to: Name of the dialect, as in `DIALECTS`.

    Raises:
        UsageError: There is no such dialect, or it cannot say setups of this backend.
    """
    backend = subject.setup.backend
    others = " or ".join(fitting(backend))
    dialect = DIALECTS.get(to)
    if dialect is None:
        raise UsageError(f"There is no dialect {to!r}; use --to {others}.")
    if backend not in dialect.backends:
        raise UsageError(
            f"The setup {subject.setup.key} trains with {backend}, which --to {to} cannot say; "
            f"use --to {others}."
        )
    return dialect.export(subject)
