"""What a probe says to the controller, and what it asks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from typing import Any

from autotune.probe.control import Control


class ControllerGoneError(Exception):
    """The controller ended, or ended the launch, while a probe waited for its answer."""


@dataclass(frozen=True, slots=True)
class Line:
    """The connection to the controller: every rank calls its methods, rank 0 speaks.

    Attributes:
        control: Shares with all ranks what rank 0 hears.
        connection: None on the other ranks.
    """

    control: Control
    connection: Connection[Any, Any] | None

    def announce(self, phase: str) -> None:
        """Says that all ranks begin ``phase``.

        No rank begins before it is said, and it is said only when all have ended the phase
        before, so that a rank's death is never put down to another phase than its own.
        """
        self.control.barrier()
        self.send({"phase": phase})
        self.control.barrier()

    def ask(self, burst: int, backward_seconds: Sequence[float]) -> str | None:
        """Why the probe should stop, or None to go on; the same on every rank.

        Raises:
            ControllerGoneError: Nobody answers any more.
        """
        self.send({"burst": {"index": burst, "backward_seconds": list(backward_seconds)}})
        answer = self.next()
        if "prune" not in answer:
            raise ControllerGoneError
        reason: str | None = answer["prune"]
        return reason

    def next(self) -> dict[str, Any]:
        """The controller's next message, on every rank; a controller that is gone means stop."""
        return self.control.share(self._receive())

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends rank 0's message."""
        if self.connection is not None:
            self.connection.send_bytes(json.dumps(message).encode())

    def _receive(self) -> dict[str, Any] | None:
        if self.connection is None:
            return None
        try:
            message: dict[str, Any] = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            return {"stop": True}
        return message


def connect() -> Connection[Any, Any]:
    """Opens the authenticated connection to the controller."""
    address = json.loads(os.environ["AUTOTUNE_ADDRESS"])
    key = bytes.fromhex(os.environ["AUTOTUNE_KEY"])
    return Client(address if isinstance(address, str) else tuple(address), authkey=key)
