"""A cache of compiled torch extensions of our own, since workers may be killed at any time.

torch guards a build by the mere existence of a file. A worker that is killed while it holds it
leaves it behind, and from then on whoever uses that extension waits for ever. In the user's own
cache that would be their training; here it is found and removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import sys
import time
from pathlib import Path
from typing import IO

VARIABLE = "TORCH_EXTENSIONS_DIR"
GUARD = "in-use"
TORCH_LOCK = "lock"
BUILD_SECONDS = 900  # no extension takes as long to compile


def default_folder() -> Path:
    """The cache of this Python environment, below the user's: another would compile anew."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    base = os.environ.get(VARIABLE) or Path(cache) / "torch_extensions"
    environment = hashlib.sha256(f"{sys.prefix} {sys.version}".encode()).hexdigest()[:12]
    return Path(base) / f"autotune-{environment}"


class ExtensionCache:
    """One launch's use of a cache folder.

    Every launch holds a shared file lock while it lives, which the system releases whatever
    happens to the controller. Who can have it alone knows that no build is running.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard: IO[bytes] | None = None

    def enter(self) -> None:
        """Removes what killed workers left.

        While another launch of this user is alive, a build may be running, and only what is too
        old for one goes.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._guard = (self._folder / GUARD).open("wb")
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            oldest = math.inf
        except BlockingIOError:
            oldest = time.time() - BUILD_SECONDS
        for left in self._folder.rglob(TORCH_LOCK):
            with contextlib.suppress(FileNotFoundError):
                if left.stat().st_mtime < oldest:
                    left.unlink()
        fcntl.flock(self._guard, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Lets others clean up. May be called twice."""
        if self._guard is not None:
            self._guard.close()
            self._guard = None
