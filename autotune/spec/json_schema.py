"""The JSON schema of a sweep file: editors complete from it, errors take their words from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from autotune.spec.faults import Place
from autotune.spec.model import SweepFile

Schema = Mapping[str, Any]


class _EditorSchema(GenerateJsonSchema):
    """Without null: a key without a value is a mistake in a sweep file."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        inner = super().default_schema(schema)
        plain = inner.get("default") is not None and not isinstance(inner["default"], Mapping)
        return inner if plain else {key: inner[key] for key in inner if key != "default"}


@cache
def json_schema() -> Schema:
    """JSON schema (draft 2020-12) of a sweep file."""
    schema = SweepFile.model_json_schema(schema_generator=_EditorSchema)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": "autotune sweep file"}


def schema_at(place: Place) -> Schema:
    """The part that describes the value at ``place``; empty where anything may stand."""
    schema = resolve(json_schema())
    for step in place:
        if isinstance(step, int):
            schema = resolve(_list_of(schema).get("items", {}))
        else:
            schema = resolve(schema.get("properties", {}).get(step, {}))
    return schema


def resolve(schema: Schema) -> Schema:
    """The definition that a reference points at."""
    if "$ref" not in schema:
        return schema
    definition: Schema = json_schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return definition


def _list_of(schema: Schema) -> Schema:
    return next((item for item in schema.get("anyOf", ()) if item.get("type") == "array"), {})


def describe(schema: Schema) -> str:
    """What may stand there, in words."""
    listed = _list_of(schema)
    if listed:
        return f"{describe(listed['items'])}; or a list of these, each once"
    if "anyOf" in schema and "properties" not in schema:
        return " or ".join(describe(item) for item in schema["anyOf"])
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return ", ".join(schema["enum"])
    return _describe_type(schema)


def _describe_type(schema: Schema) -> str:
    kind = schema.get("type")
    if kind == "boolean":
        return "true or false"
    if kind in ("integer", "number"):
        return ("a whole number" if kind == "integer" else "a number") + _range(schema)
    if kind == "string":
        return str(schema.get("patternErrorMessage", "text"))
    if "properties" in schema:
        return "a mapping with the keys " + ", ".join(schema["properties"])
    return "a mapping" if kind == "object" else "anything"


def _range(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}" if most < 1e6 else f" from {least} to {most}"
    parts = (
        (" above {}", above),
        (" of at least {}", least),
        (" up to {}", most),
        (" below {}", below),
    )
    return " and".join(words.format(bound) for words, bound in parts if bound is not None)
