"""The keys of a sweep file that describe a model of transformers, and the files they name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.spec.faults import Fault, Place, shorten
from autotune.spec.kinds import wrong
from autotune.spec.yaml_reader import Document
from autotune.workload import Hf

FILE_KEYS = {"data_dtype": ".bin", "data_column": ".parquet"}
"""Keys that go with one kind of data file."""
DATA_FILES = (".npy", *FILE_KEYS.values())
TOKEN_KEYS = ("sequence", "data")
"""Keys that go with text."""
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
CONFIG = "config.json"


def check_key(name: str, others: Mapping[str, Any], models: tuple[str, ...]) -> None:
    """Refuses a key that does not fit what stands before it in the section.

    Args:
        name: One that goes with hf.
        others: Keys that were read before and found right.
        models: Keys of which a section has one.

    Raises:
        PydanticCustomError: It goes with another model, task or data file.
    """
    other = next((model for model in models if others.get(model) is not None), "hf")
    if others.get("hf") is None and other != "hf":
        raise wrong(f"{name} goes with hf; delete it or use hf instead of {other}")
    if name in TOKEN_KEYS and others.get("task") == "image-classification":
        raise wrong(f"{name} is for text; delete it, because images are random")
    if name in FILE_KEYS and "data" in others:
        _check_file_key(name, others["data"])


def _check_file_key(name: str, data: str | None) -> None:
    suffix = FILE_KEYS[name]
    if data is None:
        raise wrong(f"{name} goes with data; add data: FILE{suffix} or delete it")
    if not data.endswith(suffix):
        raise wrong(f"{name} is for {suffix} files and data is {shorten(data)}; delete it")


def hf_faults(document: Document, home: Path) -> Iterator[Fault]:
    """Faults where the model or its data are not on this machine."""
    section = document.data.get("workload") if isinstance(document.data, dict) else None
    if not isinstance(section, dict) or "hf" not in section:
        return
    checks: Mapping[str, Callable[[str, Path], str | None]] = {"hf": _no_model, "data": _no_file}
    for name, check in checks.items():
        place: Place = ("workload", name)
        value = section.get(name)
        words = check(value, home / value) if isinstance(value, str) and value else None
        if words is not None:
            yield Fault(document.line(place), place, words)


def _no_model(name: str, path: Path) -> str | None:
    """What is wrong with the path of a model."""
    try:
        if path.is_file():
            return None if path.suffix == ".json" else f"{shorten(name)} is no {CONFIG}"
        if path.is_dir():
            found = (path / CONFIG).is_file()
            return None if found else f"{shorten(name)} holds no {CONFIG}; give the model's folder"
    except (OSError, ValueError):  # no permission, too long, a NUL
        pass
    known = HUB_NAME.fullmatch(name) is not None
    get = f"hf download {name} --local-dir {name.rpartition('/')[2]}" if known else f"its {CONFIG}"
    return (
        f"{shorten(name)} is not on this machine, and nothing is downloaded; give a local folder: "
        + get
    )


def _no_file(name: str, path: Path) -> str | None:
    """What is wrong with the path of a file, unless its very name is wrong."""
    try:
        found = path.is_file()
    except (OSError, ValueError):
        found = False
    if found or path.suffix not in DATA_FILES:
        return None
    return f"{shorten(name)} is not a file; allowed: a path from the sweep file's folder"


def read_hf(section: Mapping[str, Any], home: Path) -> Hf:
    """The workload that a section describes.

    Args:
        section: Keys of the workload; those that are not given are None.
        home: Folder from which its paths start; absolute.
    """
    given = {name: section[name] for name in ("task", "sequence", *FILE_KEYS, "layers")}
    data = section["data"]
    return Hf(
        path=str(home / section["hf"]),
        data=None if data is None else str(home / data),
        **{name: value for name, value in given.items() if value is not None},
    )
