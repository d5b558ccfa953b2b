"""What is exported: a setup, the text that configures it, and where both are from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.backends import backend_of
from autotune.bundle import unbundle
from autotune.export.exported import Note, summary
from autotune.export.provenance import Provenance, Unmeasured
from autotune.outcome import Probe
from autotune.setup import Setup
from autotune.workload import Script


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A setup to say in some dialect.

    Attributes:
        setup: The setup.
        config: Text of the file that configures its backend: the one that ran, where it was
            measured.
        provenance: Where it comes from.
        others: The other files that a script was measured with, by name.
        templates: Folder of the user's own templates.
        script: What the probe ran, if it was the user's script.
    """

    setup: Setup
    config: str
    provenance: Provenance | Unmeasured
    others: Mapping[str, str] = field(default_factory=dict)
    templates: Path | None = None
    script: Script | None = None

    def header(self, notes: Iterable[Note]) -> tuple[str, ...]:
        """Lines for the head of a file: where it is from, and how well it says each knob."""
        return (*self.provenance.lines(), *summary(notes))

    @property
    def file_name(self) -> str:
        """What the backend's file is called."""
        return backend_of(self.setup).file_name


def subject_of(
    probe: Probe,
    provenance: Provenance | Unmeasured,
    templates: Path | None = None,
    script: Script | None = None,
) -> Subject:
    """A measured setup, with the text that ran.

    Args:
        probe: A probe of the setup.
        provenance: Written into the files.
        templates: Folder of the user's own templates.
        script: What the probe ran, if it was the user's script.
    """
    name = backend_of(probe.setup).file_name
    files = {name: probe.rendered} if script is None else unbundle(probe.rendered)
    return Subject(
        setup=probe.setup,
        config=files[name],
        provenance=provenance,
        others={key: text for key, text in files.items() if key != name},
        templates=templates,
        script=script,
    )
