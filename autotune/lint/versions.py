"""Which versions of the consumers a file is for, and whether a rule is about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version

from autotune.errors import UsageError

CONSUMERS = ("deepspeed", "accelerate", "transformers", "torch")
PART = re.compile(r"(>=|<=|<|>|==)(\d+(?:\.\d+)*)")
NUMBER = re.compile(r"\d+(?:\.\d+)*")


def installed() -> dict[str, str]:
    """Versions of the consumers that are installed here; nothing is imported for it."""
    found = {}
    for name in CONSUMERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def named(texts: Iterable[str]) -> dict[str, str]:
    """Versions out of ``deepspeed=0.16.4``.

    Raises:
        UsageError: It is not of that form.
    """
    found = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in CONSUMERS or not NUMBER.match(number.lstrip("=")):
            raise UsageError(
                f"--for {text}: give a package and its version, such as deepspeed=0.16.4; "
                f"packages are {', '.join(CONSUMERS)}."
            )
        found[name] = number.lstrip("=")
    return found


def applies(affected: Mapping[str, str], versions: Mapping[str, str]) -> bool:
    """Whether each package is of an affected version, as far as it is known."""
    return all(
        name not in versions or within(versions[name], spec) for name, spec in affected.items()
    )


def within(number: str, spec: str) -> bool:
    """Whether a version fulfils each part of a specification such as ``>=1.13,<2``."""
    return all(_holds(number, *part) for part in PART.findall(spec))


def _holds(number: str, relation: str, bound: str) -> bool:
    ours, theirs = _padded(number), _padded(bound)
    return {
        ">=": ours >= theirs,
        "<=": ours <= theirs,
        "<": ours < theirs,
        ">": ours > theirs,
        "==": ours == theirs,
    }[relation]


def _padded(number: str) -> tuple[int, ...]:
    """Four numbers; what follows them (``+cpu``, ``rc1``) does not count."""
    match = NUMBER.match(number)
    parts = [int(part) for part in match.group().split(".")] if match else []
    return (*parts, 0, 0, 0, 0)[:4]
