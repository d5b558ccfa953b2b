"""A setup that is asked for by name: a YAML file of knobs, flags, or both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from autotune.errors import UsageError
from autotune.spec.faults import Fault, Place, report, shorten
from autotune.spec.kinds import WORDS, Count
from autotune.spec.model import KnobsSection
from autotune.spec.read import flat, printable, read_text
from autotune.spec.yaml_reader import Document, read_yaml


class SetupFile(KnobsSection):
    """One value for each knob that is named; the others take their defaults."""

    micro_batch: Count | None = None
    """Samples in one backward call on one rank. Default: 1."""
    gradient_accumulation: Count | None = None
    """Backward calls in one optimizer step. Default: 1."""


def read_setup(path: Path | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs that a file and the command line name.

    Args:
        path: A YAML file of knobs, as under ``baseline`` of a sweep file.
        flags: Values by knob, of the loss scale as ``loss_scale.window``; they go before the
            file's.

    Returns:
        Value by knob, likewise.

    Raises:
        UsageError: The file cannot be read, or something in it or in the flags is wrong.
    """
    named = {} if path is None else _file(path)
    try:
        given = flat(SetupFile.model_validate(_nested(flags)))
    except ValidationError as error:
        raise UsageError("\n".join(_flag_faults(error))) from error
    return {**named, **given}


def _file(path: Path) -> dict[str, Any]:
    document = read_yaml(read_text(path, "setup file"))
    faults = list(document.faults)
    if not faults:
        try:
            return flat(SetupFile.model_validate(document.data))
        except ValidationError as error:
            faults = list(_file_faults(document, error))
    raise UsageError(report(printable(path), faults))


def _file_faults(document: Document, error: ValidationError) -> Iterator[Fault]:
    for details in error.errors(include_url=False):
        place: Place = details["loc"]
        yield Fault(document.line(place), place, _words(details))


def _flag_faults(error: ValidationError) -> Iterator[str]:
    for details in error.errors(include_url=False):
        flag = "--" + "-".join(str(step).replace("_", "-") for step in details["loc"])
        yield f"{flag}: {_words(details)}"


def _words(details: ErrorDetails) -> str:
    if details["type"] == WORDS:
        return details["msg"]
    if details["type"] == "extra_forbidden":
        return f"is no knob; allowed: {', '.join(SetupFile.model_fields)}"
    return f"{shorten(details['input'])} is not allowed: {details['msg']}"


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Without what was not given; ``loss_scale.window`` becomes a mapping in a mapping."""
    nested: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None:
            continue
        outer, _, inner = name.partition(".")
        if inner:
            nested.setdefault(outer, {})[inner] = value
        else:
            nested[name] = value
    return nested
