"""What the controller asks of the attachment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from autotune.probe.parse import parse_request
from autotune.request import ProbeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """One probe of a script.

    Attributes:
        request: The setup and how long it is measured.
        home: The user's folder.
        scratch: Its mirror, in which the script runs.
        install: Rendered modules whose ``install()`` is called before the script.
        seed: Of the random generators before the script sets its own.
        losses: Whether losses and gradient norms are taken.
    """

    request: ProbeRequest
    home: Path
    scratch: Path
    install: tuple[Path, ...] = ()
    seed: int = 0
    losses: bool = True


def read_orders(path: Path) -> Orders:
    """The orders out of the controller's file."""
    message = json.loads(path.read_text(encoding="utf-8"))
    request = parse_request(message["request"])
    assert isinstance(request, ProbeRequest)
    return Orders(
        request=request,
        home=Path(message["home"]).resolve(),
        scratch=Path(message["scratch"]).resolve(),
        install=tuple(Path(item) for item in message["install"]),
        seed=message["seed"],
        losses=message["losses"],
    )
