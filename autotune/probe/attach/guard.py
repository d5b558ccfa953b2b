"""Keeps the user's files as they are: what the script writes goes to the scratch folder."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn

from autotune.errors import UsageError
from autotune.probe.attach.places import Places
from autotune.probe.process import write_note

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
UNNAMED = getattr(os, "O_TMPFILE", 0)  # a file without a name, whose path is only its folder
MOST_NOTED = 20
MOST_COPIED = 4 << 30  # bytes; a data set that is opened to be changed may be far larger
NOTE = "redirected.json"
Effect = Literal["makes", "removes"]
# Audit events that change the entries of a folder. Of each path among their arguments: where it
# is, where the descriptor of the folder is from which it starts, and what happens to it.
ENTRIES: dict[str, tuple[tuple[int, int, Effect], ...]] = {
    "os.mkdir": ((0, 2, "makes"),),
    "os.remove": ((0, 1, "removes"),),
    "os.rmdir": ((0, 1, "removes"),),
    "os.rename": ((0, 2, "removes"), (1, 3, "makes")),
    "os.link": ((1, 3, "makes"),),
    "os.symlink": ((1, 2, "makes"),),
    "shutil.rmtree": ((0, 1, "removes"),),
}
# Those that change a file, which may be behind a link, or give it a second name.
CONTENTS = {
    **{"os.truncate": -1, "os.chmod": 2, "os.chown": 3, "os.utime": 3, "os.link": 2},
    "sqlite3.connect": -1,
}


class Guard:
    """An audit hook that hears of a file before it is opened, and makes links into copies.

    Attributes:
        events: That it wants to hear of.
        refused: What the last refusal said.
    """

    events = ("open", *ENTRIES, *CONTENTS)

    def __init__(self, places: Places, folder: Path) -> None:
        """Does nothing yet.

        Args:
            places: Whose files are where.
            folder: The launch's, for the note.
        """
        self.refused: str | None = None
        self._places = places
        self._folder = folder
        self._redirected: dict[str, None] = {}
        self._outside: dict[str, None] = {}
        self._own = threading.local()

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Hears of everything that Python is about to do to files.

        Raises:
            UsageError: It would change the user's own files.
        """
        if event == "open":
            path, _, flags = arguments
            if flags & WRITING and (not UNNAMED or flags & UNNAMED != UNNAMED):
                self.before_write(path, keep=not flags & os.O_TRUNC and not flags & os.O_EXCL)
            return
        for index, base, effect in ENTRIES.get(event, ()):
            self._before_entry(event, arguments[index], _at(arguments, base), effect)
        if event in CONTENTS:
            self.before_write(arguments[0], _at(arguments, CONTENTS[event]), keep=True)

    def before_write(self, path: Any, base: int = -1, *, keep: bool) -> None:
        """Makes a file safe to write to.

        Args:
            path: As the script gives it.
            base: Descriptor of the folder that it starts from; negative for the current one.
            keep: Whether what the file holds is needed.

        Raises:
            UsageError: It is the user's own.
        """
        if isinstance(path, int) or getattr(self._own, "working", False):
            return
        with self._working():
            target = self._places.find(path, base)
            where = self._places.sort(target)
            if where == "scratch":
                _note(self._redirected, os.path.relpath(target, self._places.scratch))
                self._detach(target, keep=keep)
            elif where == "home":
                self._refuse(path, target)
            elif where == "outside" and not os.path.isdir(target):  # noqa: PTH112 - a text
                _note(self._outside, target)

    def _before_entry(self, event: str, path: Any, base: int, effect: Effect) -> None:
        if isinstance(path, int) or getattr(self._own, "working", False):
            return
        with self._working():
            target = self._places.find(path, base)
            where, exists = self._places.sort(target), os.path.lexists(target)
            # What removes nothing, or makes a folder that is there, changes nothing.
            if (effect == "removes" and not exists) or (event == "os.mkdir" and exists):
                return
            if where == "home":
                self._refuse(path, target)
            elif where == "outside":
                _note(self._outside, target)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """What the guard does itself is not its own concern."""
        self._own.working = True
        try:
            yield
        finally:
            self._own.working = False

    def _refuse(self, path: Any, target: str) -> None:
        shown = os.fsdecode(path)
        if os.path.isabs(shown):  # noqa: PTH117 - a text
            why = f"writes to {shown} with an absolute path"
        else:
            why = f"writes to {shown}, which is {target}, not in its scratch folder"
        self._say_no(
            f"The script {why}, and a probe must not change your files; give a relative path or "
            "the placeholder {output_dir}."
        )

    def _say_no(self, reason: str) -> NoReturn:
        self.refused = reason
        raise UsageError(reason)

    def _detach(self, target: str, *, keep: bool) -> None:
        """Replaces a link into the user's folder by a copy of the file, or removes it."""
        if not os.path.islink(target):  # noqa: PTH114 - a text
            return
        with (self._folder / "guard.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the ranks share the folder
            link = Path(target)
            if not link.is_symlink():
                return
            if not (keep and link.is_file()):
                link.unlink()
                return
            if link.stat().st_size > MOST_COPIED:
                self._say_no(
                    f"The script opens {link.name} to change it, and a probe must change a copy, "
                    f"for which its {link.stat().st_size / 1e9:.0f} GB are too much; open it only "
                    "for reading, or give another file."
                )
            copy = link.with_name(f".{link.name}.{os.getpid()}.copy")
            shutil.copy2(link, copy)
            copy.replace(link)

    def save(self) -> None:
        """Leaves the note for the controller: what was redirected, and what was not."""
        with self._working():
            lists = {"redirected": list(self._redirected), "outside": list(self._outside)}
            write_note(self._folder / NOTE, json.dumps(lists))

    def protect_torch_save(self, module: ModuleType) -> None:
        """``torch.save`` opens its file in C++, where no audit event tells of it."""
        self._protect(module, "save", 1, "f")

    def protect_save_file(self, module: ModuleType) -> None:
        """``safetensors.torch.save_file`` opens its file in Rust."""
        self._protect(module, "save_file", 1, "filename")

    def _protect(self, module: Any, name: str, position: int, keyword: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def protected(*args: Any, **kwargs: Any) -> Any:
            path = args[position] if len(args) > position else kwargs.get(keyword)
            if isinstance(path, str | os.PathLike):
                self.before_write(path, keep=False)
            return original(*args, **kwargs)

        setattr(module, name, protected)


def _at(arguments: tuple[Any, ...], index: int) -> int:
    """The descriptor among an event's arguments; negative where there is none."""
    base = arguments[index] if 0 <= index < len(arguments) else None
    return -1 if base is None else int(base)


def _note(noted: dict[str, None], path: str) -> None:
    if len(noted) < MOST_NOTED:
        noted[path] = None
