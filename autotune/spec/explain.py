"""From pydantic's errors to faults in the user's words, one for each thing that is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from autotune.spec.faults import MOST_SHOWN, Fault, Place, closest, shorten
from autotune.spec.json_schema import Schema, describe, json_schema, resolve, schema_at
from autotune.spec.kinds import WORDS
from autotune.spec.model import MODELS, SweepFile
from autotune.spec.yaml_reader import REFUSED, Document

FREE_FORM: Place = ("workload", "args")  # the user's own; null is a value there
MEANT = {
    **dict.fromkeys(("yes", "y", "on", "1"), "true"),
    **dict.fromkeys(("no", "n", "off", "0"), "false"),
}


def validate(document: Document) -> tuple[SweepFile | None, tuple[Fault, ...]]:
    """The sweep that a document describes, or everything that is wrong with it."""
    found = [*document.faults, *_empty(document, document.data, ()), *_model(document)]
    sweep = None
    try:
        sweep = SweepFile.model_validate(document.data)
    except ValidationError as error:
        known = {fault.place for fault in found}
        errors = error.errors(include_url=False)
        faults = [_fault(document, details) for details in errors[:_MOST]]
        found += [
            fault
            for fault in faults
            if fault.place not in known and not _is_refused(document, fault.place)
        ]
    return (None if found else sweep), tuple(found)


_MOST = 2 * MOST_SHOWN  # each costs a search for the nearest word


def _empty(document: Document, value: Any, place: Place) -> Iterator[Fault]:
    """Keys and list items without a value."""
    if value is None and place:
        words = f"has no value; allowed: {describe(schema_at(place))}; or delete the key"
        yield Fault(document.line(place), place, words)
    elif place == FREE_FORM:
        return
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _empty(document, inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _empty(document, inner, (*place, index))


def _model(document: Document) -> Iterator[Fault]:
    """Exactly one model; checked here because pydantic would wait for the rest to be right."""
    section = document.data.get("workload") if isinstance(document.data, dict) else None
    if not isinstance(section, dict):
        return
    place: Place = ("workload",)
    given = [name for name in MODELS if name in section]
    if len(given) > 1:
        words = f"{' and '.join(given)} are both given; keep one"
        yield Fault(document.line((*place, given[1])), place, words)
    if not given:
        words = f"names no model; add exactly one of {', '.join(MODELS)}"
        yield Fault(document.line(place), place, words)


def _is_refused(document: Document, place: Place) -> bool:
    value: Any = document.data
    for step in place:
        if isinstance(value, dict) and step not in value:
            return False
        value = value[step]
    return value is REFUSED


def _fault(document: Document, details: ErrorDetails) -> Fault:
    place = _place(document.data, details["loc"])
    line = document.line(place)
    if details["type"] == WORDS:
        return Fault(line, place, details["msg"])
    if details["type"] == "missing":
        words = f"is missing; add it: {describe(schema_at(place))}"
        return Fault(line, place, words)
    if details["type"] == "extra_forbidden":
        return Fault(line, place, _unknown_key(place))
    return Fault(line, place, _not_allowed(document.value(place), schema_at(place)))


def _place(data: Any, steps: Place) -> Place:
    """Where an error stands in the file: a single value has no position in a list."""
    place: Place = ()
    for step in steps:
        if isinstance(step, int) and not isinstance(data, list):
            continue
        place = (*place, step)
        data = data[step] if isinstance(step, int) else data.get(step)
    return place


def _unknown_key(place: Place) -> str:
    key, known = str(place[-1]), list(schema_at(place[:-1])["properties"])
    hint = ""
    if homes := sorted(set(_homes(key, json_schema()))):
        hint = f" it belongs under {' or '.join(homes)};"
    elif meant := closest(key, known):
        hint = f" did you mean {meant}?"
    return f"is not a known key;{hint} allowed: {', '.join(known)}"


def _homes(key: str, schema: Schema, home: str = "") -> Iterator[str]:
    """Sections that know the key."""
    properties: Mapping[str, Schema] = resolve(schema).get("properties", {})
    if home and key in properties:
        yield home
    for name, inner in properties.items():
        yield from _homes(key, inner, f"{home}.{name}" if home else name)


def _not_allowed(value: Any, schema: Schema) -> str:
    meant = _meant(value, schema)
    hint = f" did you mean {meant}?" if meant else ""
    return f"{shorten(value)} is not allowed;{hint} allowed: {describe(schema)}"


def _meant(value: Any, schema: Schema) -> str | None:
    """What was probably meant by a wrong value."""
    kinds = [resolve(item) for item in schema.get("anyOf", (schema,))]
    if isinstance(value, dict | list):
        return None
    text = str(value)
    if any(kind.get("type") == "boolean" for kind in kinds):
        return MEANT.get(text.lower())
    choices = [str(word) for kind in kinds for word in kind.get("enum", ())]
    if isinstance(value, str) and choices:
        return closest(value, choices)
    if not isinstance(value, str):
        return f"'{text}', in quotes" if schema.get("type") == "string" else None
    numeric = any(kind.get("type") in ("integer", "number") for kind in kinds)
    return f"{text}, without quotes" if numeric and _is_number(text) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
