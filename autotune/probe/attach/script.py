"""Runs the user's script as ``python`` would."""

from __future__ import annotations

import importlib.util
import os
import random
import runpy
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

MODULE = "-m"


def run_script(words: Sequence[str], home: Path, scratch: Path) -> None:
    """Runs a script, or a module after ``-m``, as ``__main__``.

    The script itself is run from the scratch folder, where its ``__file__`` is, so that what it
    writes beside itself lands there. Its imports come from its real folder.

    Args:
        words: The script and its arguments.
        home: The user's folder.
        scratch: Its mirror, the current folder.
    """
    sys.dont_write_bytecode = True  # beside the user's modules
    if words[0] == MODULE:
        _put_first(home)
        sys.argv = [words[1], *words[2:]]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    path = mirrored(Path(words[0]), home, scratch)
    _put_first(path.resolve().parent)
    sys.argv = [str(path), *words[1:]]
    runpy.run_path(str(path), run_name="__main__")


def mirrored(script: Path, home: Path, scratch: Path) -> Path:
    """The script's place in the scratch folder, if it has one."""
    whole = Path(os.path.abspath(script))  # noqa: PTH100 - resolve() would leave the scratch folder
    if whole.is_relative_to(home):
        copy = scratch / whole.relative_to(home)
        return copy if copy.exists() else whole
    return whole


def _put_first(folder: Path) -> None:
    """In place of what ``python -m autotune.probe`` put there: the current folder."""
    if sys.path and sys.path[0] in ("", os.getcwd()):  # noqa: PTH109 - compared as text
        del sys.path[0]
    sys.path.insert(0, str(folder))


def seed_everything(seed: int) -> None:
    """Makes a script that sets no seed do the same in every probe, on all ranks."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:  # torch has imported it if it is there
        sys.modules["numpy"].random.seed(seed % 2**32)


def install_modules(paths: Iterable[Path]) -> None:
    """Imports rendered modules under their own names, and calls their ``install()``."""
    for path in paths:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        module.install()
