"""Whose a file is, by where it is."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Where = Literal["scratch", "home", "outside", "nobody"]
SYSTEM = ("/dev", "/proc", "/sys", "/run", "/tmp", "/var/tmp")
CACHE_VARIABLES = (
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE"),
    *("TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "WANDB_CACHE_DIR"),
    *("TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR"),
    *("MPLCONFIGDIR", "TMPDIR"),
)
CACHES = (".cache", ".triton", ".nv", ".deepspeed", ".config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The folders that matter; all real paths.

    Attributes:
        home: The user's.
        scratch: Its mirror.
        launch: The launch's own.
        shared: Caches, temporary files and installed libraries.
    """

    home: str
    scratch: str
    launch: str
    shared: tuple[str, ...]

    def find(self, path: Any, base: int = -1) -> str:
        """A path with the links in its folders followed, but not a link that it is itself.

        Args:
            path: Text, bytes or a path.
            base: Descriptor of the folder that it starts from; negative for the current one.
        """
        text = os.fsdecode(path)
        if base >= 0 and not os.path.isabs(text):  # noqa: PTH117 - a text
            text = os.path.join(os.readlink(f"/proc/self/fd/{base}"), text)  # noqa: PTH115, PTH118
        folder, name = os.path.split(os.path.abspath(text))  # noqa: PTH100 - links are kept
        return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 - a text

    def sort(self, target: str) -> Where:
        """Whose a file is, by a path from `find`.

        The scratch folder may be anywhere below the user's, and that may be below a temporary
        one; so the inner ones come first. Caches inside the user's folder are nobody's files.
        """
        if _inside(target, self.scratch):
            return "scratch"
        if _inside(target, self.launch):
            return "nobody"
        real = os.path.realpath(target)
        shared = [folder for folder in self.shared if _inside(real, folder)]
        if _inside(real, self.home):
            own = any(_inside(folder, self.home) and folder != self.home for folder in shared)
            return "nobody" if own else "home"
        return "nobody" if shared else "outside"


def find_places(home: Path, scratch: Path, launch: Path) -> Places:
    """The places of this process, as its environment names them."""
    user = Path.home()
    named = [os.environ[name] for name in CACHE_VARIABLES if os.environ.get(name)]
    shared = [
        *SYSTEM,
        *named,
        *(str(user / name) for name in CACHES),
        *(tempfile.gettempdir(), sys.prefix, sys.base_prefix),
    ]
    return Places(
        home=os.path.realpath(home),
        scratch=os.path.realpath(scratch),
        launch=os.path.realpath(launch),
        shared=tuple(dict.fromkeys(os.path.realpath(folder) for folder in shared)),
    )


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
