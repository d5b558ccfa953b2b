"""Does something to a module right after the script, or a library of its, has imported it.

Importing DeepSpeed ahead of the script would take seconds in scripts that never use it, and
DeepSpeed changes torch while it is imported. Patching at the first backward would be too late: by
then its engine may already be on the stack. So the import itself is watched, which costs one
look into a dictionary for each module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """A finder that only adds a change to the loaders of others."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._waiting = dict(changes)

    def install(self) -> None:
        """Starts watching; modules that are already there are changed now."""
        for name in [name for name in self._waiting if name in sys.modules]:
            self._waiting.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that others find, with another loader; nothing for all other modules."""
        change = self._waiting.pop(name, None)
        if change is None:
            return None
        spec = find_spec(name)  # comes here again, and finds nothing waiting
        if spec is not None and spec.loader is not None:
            spec.loader = _Changing(spec.loader, change)
        return spec


class _Changing(Loader):
    """A loader that changes the module once it is executed."""

    def __init__(self, loader: Any, change: Change) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        # Whoever asks the module for its loader gets the real one.
        module.__loader__ = self._loader
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._change(module)
