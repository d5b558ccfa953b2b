"""Where an exported setup comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autotune.render import to_comment


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where an exported setup comes from.

    Attributes:
        run: Name of the run.
        setup_key: Key of the setup.
        versions: Versions that it was measured with, by library.
        date: ISO 8601 time of the measurement, so that exporting again writes the same files.
        verdict: What the run says of the setup.
    """

    run: str
    setup_key: str
    versions: Mapping[str, str]
    date: str
    verdict: str

    def lines(self) -> tuple[str, ...]:
        """It in a few lines for people."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"Exported by autotune from run {self.run}; verdict: {self.verdict}.",
            f"Setup: {self.setup_key}",
            f"Measured at {self.date} with {versions}",
        )

    def to_dict(self) -> dict[str, Any]:
        """It as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """Of a setup that was rendered as it was asked for.

    Attributes:
        setup_key: Key of the setup.
    """

    setup_key: str

    def lines(self) -> tuple[str, ...]:
        """It in a few lines for people."""
        return ("Rendered by autotune; nothing was measured.", f"Setup: {self.setup_key}")

    def to_dict(self) -> dict[str, Any]:
        """It as JSON types."""
        return {**asdict(self), "measured": False}


def comment(lines: Iterable[str]) -> str:
    """Lines as comments of Python, YAML or a shell, which nothing in them can end."""
    return "".join(f"# {to_comment(line)}\n" for line in lines)
