"""Configuration files as text: Hjson as DeepSpeed reads it, YAML and JSON as accelerate does."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hjson
import yaml

from autotune.configs.understood import Refused

MOST_BYTES = 1_000_000
MOST_VALUES = 20_000  # a YAML alias counts each time it is used
YAML_ENDINGS = (".yml", ".yaml")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file that holds a mapping.

    Attributes:
        data: The mapping.
        strict: Whether it is JSON without comments and trailing commas, which is all that
            transformers and accelerate read.
    """

    data: dict[str, Any]
    strict: bool


class DuplicateKeyError(ValueError):
    """A key stands twice in one mapping."""


def read_file(path: Path, *, hjson_too: bool) -> Parsed | Refused:
    """Reads YAML (``.yml``, ``.yaml``) or JSON.

    Args:
        path: The file.
        hjson_too: Whether JSON may have comments and trailing commas.
    """
    text = read_text(path)
    if isinstance(text, Refused):
        return text
    try:
        found = _parse(text, path.suffix.lower() in YAML_ENDINGS, hjson_too)
    except DuplicateKeyError as error:
        return Refused((f"{error}; keep one",))
    except RecursionError:
        return Refused(("nested too deeply to be a configuration",))
    except (ValueError, OverflowError, yaml.YAMLError) as error:
        return Refused((syntax(error),))
    if not isinstance(found, dict):
        return Refused((f"holds {_kind(found)} where a mapping of keys to values must stand",))
    odd = _odd(found)
    return Parsed(found, is_strict(text)) if odd is None else Refused((odd,))


def _odd(data: Any) -> str | None:
    """What no reader should have to expect: keys that are no text, endless values, dates."""
    waiting, count = [data], 0
    while waiting:
        value = waiting.pop()
        count += 1
        if count > MOST_VALUES:
            return f"more than {MOST_VALUES} values, which no configuration has"
        if isinstance(value, dict):
            odd = next((key for key in value if not isinstance(key, str)), None)
            if odd is not None or None in value:
                return f"the key {odd!r} is no text; put it in quotes"
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif not isinstance(value, str | int | float | None):
            return f"the value {value} is nothing that JSON holds; put it in quotes if it is text"
        elif isinstance(value, float) and not math.isfinite(value):
            return f"the value {value} is no finite number"
    return None


def read_text(path: Path) -> str | Refused:
    """The text of a file that is small enough to be a configuration."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Refused((f"{path} cannot be read ({reason})",))
    if len(content) > MOST_BYTES:
        return Refused((f"larger than {MOST_BYTES} bytes, which no configuration is",))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return Refused((f"line {line}: byte 0x{content[error.start]:02x} is not UTF-8 text",))


def _parse(text: str, is_yaml: bool, hjson_too: bool) -> Any:
    if is_yaml:
        return parse_yaml(text)
    if hjson_too:
        return hjson.loads(text, object_pairs_hook=_unique)
    return json.loads(text, object_pairs_hook=_unique)


def parse_yaml(text: str) -> Any:
    """Reads YAML 1.1 as ``yaml.safe_load`` does, but refuses a key that stands twice.

    Raises:
        ValueError: A key stands twice.
        yaml.YAMLError: It is not YAML.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As in the base class, which lets the last of equal keys win."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = getattr(key_node, "value", None)
            if isinstance(key, str) and key in seen and key != "<<":
                line = key_node.start_mark.line + 1
                raise DuplicateKeyError(f"line {line}: the key {key} stands twice")
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DuplicateKeyError(f"the key {key} stands twice")
        found[key] = value
    return found


def syntax(error: Exception) -> str:
    """What a parser stumbled over, and where."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: not YAML: {error.problem}"
    line, column = getattr(error, "lineno", None), getattr(error, "colno", None)
    place = f"line {line}, column {column}: " if line else ""
    message = getattr(error, "msg", None) or str(error).splitlines()[0]
    return f"{place}neither JSON nor YAML: {message}"


def is_strict(text: str) -> bool:
    """Whether it is JSON without comments and trailing commas."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _kind(value: Any) -> str:
    if value is None or value == "":
        return "nothing"
    return "a list" if isinstance(value, list) else f"the single value {str(value)[:40]!r}"


def show(value: Any) -> str:
    """A value in an error message, as JSON writes it and not too long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:60] + "..."


def block(config: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A mapping inside a mapping; empty where there is none."""
    found: Any = config
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
