"""The kinds of value that a sweep file holds, each with its check and its JSON schema."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError

from autotune.spec.faults import shorten

T = TypeVar("T")

LARGEST_EXACT = 2**53  # whole numbers above it are not exact as floats
PERCENT = r"^[0-9]{1,2}(\.[0-9]+)? ?%$"
WORDS = "words"
"""Type of the errors whose message is already what the user should read."""


def wrong(words: str) -> PydanticCustomError:
    """An error in our own words, for a validator to raise."""
    return PydanticCustomError(WORDS, "{words}", {"words": words})


def _whole(value: Any) -> Any:
    """``25e6`` is a whole number to whoever wrote it."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST_EXACT:
        return int(value)
    return value


def _version(value: Any) -> Any:
    # To Literal, true is 1.
    return value if type(value) is int else shorten(value)


def _ranks(value: Any) -> Any:
    return None if value == "auto" else _whole(value)


def _margin(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(PERCENT, value):
        return float(value.rstrip("% ")) / 100
    return value


def _listed(value: Any) -> Any:
    """A single value is a list of one."""
    return tuple(value) if isinstance(value, list) else (value,)


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise PydanticCustomError("empty", "empty")
    for index, value in enumerate(values):
        if value in values[:index]:
            raise wrong(f"{shorten(value)} is listed twice; list each value once")
    return values


class _OrScalar:
    """Lets the schema of a list admit a single value too."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core)
        item = schema["items"]
        return {"anyOf": [item, {**schema, "minItems": 1, "uniqueItems": True}]}


Axis = Annotated[
    tuple[T, ...],
    BeforeValidator(_listed),
    AfterValidator(_distinct),
    _OrScalar(),
]
"""Values of a knob: a list is searched, a single value is fixed."""

Version = Annotated[Literal[1], BeforeValidator(_version)]
Name = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$",
        json_schema_extra={
            "patternErrorMessage": "up to 64 letters, digits, '.', '_' and '-', "
            "with a letter or digit at both ends"
        },
    ),
]
FactoryPath = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
        json_schema_extra={"patternErrorMessage": "package.module:factory"},
    ),
]
Folder = Annotated[str, Field(min_length=1)]
DataFile = Annotated[
    str,
    Field(
        pattern=r"[^/]\.(npy|bin|parquet)$",
        json_schema_extra={"patternErrorMessage": "a file that ends in .npy, .bin or .parquet"},
    ),
]
ClassName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        json_schema_extra={"patternErrorMessage": "the name of a class, such as LlamaDecoderLayer"},
    ),
]
IntegerName = Literal["uint8", "uint16", "uint32", "int16", "int32", "int64"]
Line = Annotated[str, Field(min_length=1)]

Count = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
Vocabulary = Annotated[int, Field(ge=2), BeforeValidator(_whole)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1), BeforeValidator(_whole)]
Stage = Annotated[int, Field(ge=0, le=3), BeforeValidator(_whole)]
Power = Annotated[int, Field(ge=0, le=32), BeforeValidator(_whole)]
Bytes = Annotated[int, Field(ge=1, le=2**40), BeforeValidator(_whole)]
Steps = Annotated[int, Field(ge=1, le=1000), BeforeValidator(_whole)]
GateSteps = Annotated[int, Field(ge=8, le=1000), BeforeValidator(_whole)]
TraceSteps = Annotated[int, Field(ge=20, le=1000), BeforeValidator(_whole)]
Ratio = Annotated[float, Field(gt=0, le=64, allow_inf_nan=False)]
Minutes = Annotated[float, Field(gt=0, le=60 * 24 * 30, allow_inf_nan=False)]
Deadline = Annotated[float, Field(ge=1, le=60 * 60 * 24, allow_inf_nan=False)]
LearningRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Up to a half: `gain: 1` and `cosine: 0.999` are meant as what should be, not as a distance.
Distance = Annotated[float, Field(gt=0, le=0.5, allow_inf_nan=False)]
Error = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Bits = Annotated[float, Field(ge=0, le=15, allow_inf_nan=False)]
Ranks = Annotated[
    int | None,
    Field(ge=1, le=1024),
    BeforeValidator(_ranks),
    WithJsonSchema(
        {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": 1024}]}
    ),
]
Margin = Annotated[
    float,
    Field(ge=0, lt=1, allow_inf_nan=False),
    BeforeValidator(_margin),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "string",
                    "pattern": PERCENT,
                    "patternErrorMessage": "a percentage such as 1%",
                },
                {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
            ]
        }
    ),
]
