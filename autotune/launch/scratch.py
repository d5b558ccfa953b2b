"""A folder for a script to run in, in place of the user's own."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

MOST_ENTRIES = 5_000
VENV_MARK = "pyvenv.cfg"
SKIPPED = frozenset(
    {
        *(".git", ".hg", ".svn", "__pycache__", "node_modules"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox"),
        *(".ipynb_checkpoints", ".idea", ".vscode"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """A mirror of the user's folder.

    Attributes:
        folder: Where it is.
        not_redirected: Folders, relative to the user's, that are one link: what the script wants
            to write there is refused, because it would be in the user's own.
    """

    folder: Path
    not_redirected: tuple[str, ...]


def make_scratch(home: Path, scratch: Path) -> Scratch:
    """Mirrors a folder with real folders and with links to its files.

    Left out are version control, caches, virtual environments, and the folder in which the
    scratch folder itself is. At most `MOST_ENTRIES` entries are made, those near the top first;
    a folder that would exceed them becomes one link.

    Args:
        home: The user's folder.
        scratch: The mirror, which is made.
    """
    mirror = _Mirror(home.resolve(), scratch.absolute())
    mirror.make()
    return Scratch(folder=mirror.scratch, not_redirected=tuple(sorted(mirror.linked)))


class _Mirror:
    """A mirror in the making."""

    def __init__(self, home: Path, scratch: Path) -> None:
        self.scratch = scratch
        self.linked: list[str] = []
        self._home = home
        self._made = 0

    def make(self) -> None:
        """Goes down level by level."""
        self.scratch.mkdir(parents=True)
        around = self.scratch.resolve()
        waiting = deque([self._home])
        while waiting:
            folder = waiting.popleft()
            # The top is mirrored whatever it holds: a link would be the user's folder itself.
            most = None if folder == self._home else MOST_ENTRIES - self._made
            entries = _entries(folder, around, most)
            if entries is None:
                self._link(folder)
                continue
            self._made += len(entries)
            self._target(folder).mkdir(exist_ok=True)
            for entry in entries:
                path = folder / entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                else:
                    self._link(path)

    def _target(self, path: Path) -> Path:
        return self.scratch / path.relative_to(self._home)

    def _link(self, path: Path) -> None:
        self._target(path).symlink_to(path)
        if path.is_dir():
            self.linked.append(path.relative_to(self._home).as_posix())


def _entries(folder: Path, around: Path, most: int | None) -> list[os.DirEntry[str]] | None:
    """What of a folder is mirrored, by name; None if it cannot be read, or is over ``most``."""
    found: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not _is_left_out(entry, around):
                    found.append(entry)
                if most is not None and len(found) > most:
                    return None
    except PermissionError:
        return None
    return sorted(found, key=lambda entry: entry.name)


def _is_left_out(entry: os.DirEntry[str], around: Path) -> bool:
    path = Path(entry.path)
    is_venv = os.path.isfile(path / VENV_MARK)  # noqa: PTH113 - says no where it may not look
    return entry.name in SKIPPED or around.is_relative_to(path) or is_venv


def scratch_environment(scratch: Path) -> dict[str, str]:
    """Variables that keep experiment trackers off the network, with their files in the scratch."""
    return {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(scratch),
        "TENSORBOARD_LOGGING_DIR": str(scratch / "tensorboard"),
        "MLFLOW_TRACKING_URI": (scratch / "mlruns").absolute().as_uri(),
    }
