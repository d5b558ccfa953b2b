"""A TrainJob and its ConfigMap, as a container of the trainer finds them."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from autotune.consumer.launch import found_in

REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\((?P<name>[^)]*)\))")


def read(folder: Path) -> dict[str, Any]:
    """What a script finds in a pod: the mounted files, and the variables of the container."""
    configuration = yaml.safe_load((folder / "configmap.yaml").read_text(encoding="utf-8"))
    job = yaml.safe_load((folder / "trainjob.yaml").read_text(encoding="utf-8"))
    environment: dict[str, str] = {}
    for item in job["spec"]["trainer"]["env"]:
        environment[item["name"]] = expanded(item["value"], environment)
    with tempfile.TemporaryDirectory(prefix="autotune-mounted-") as name:
        for file, text in configuration["data"].items():
            (Path(name) / file).write_text(text, encoding="utf-8")
        sys.path.insert(0, name)
        return found_in(Path(name), environment)


def expanded(text: str, environment: dict[str, str]) -> str:
    """What Kubernetes makes of commands, arguments and values of variables.

    Two dollars are one, and ``$(NAME)`` is a variable, if there is one of the name (Kubernetes API,
    Container v1 core, ``args``).
    """

    def replacement(match: re.Match[str]) -> str:
        return match["dollar"] or environment.get(match["name"], match[0])

    return REFERENCE.sub(replacement, text)
