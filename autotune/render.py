"""Template and variables in, checked text out."""

from __future__ import annotations

import ast
import json
import math
import shlex
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jinja2 import FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound
from jinja2.exceptions import FilterArgumentError
from jinja2.sandbox import SandboxedEnvironment

from autotune.configs.texts import parse_yaml
from autotune.errors import UsageError

PACKAGE = Path(__file__).parent
HERE = "\0"
"""Stands in a shell word for the folder of the script: no word can hold it by itself."""
TORCH_DTYPES = {
    None: "None",
    "fp32": "torch.float32",
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
}
# What an expression of a template can raise, beside jinja2's own errors.
EXPRESSION_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def shipped_templates() -> Path:
    """Folder of the templates that come with autotune: in the wheel, or in the source tree."""
    installed = PACKAGE / "templates"
    return installed if installed.is_dir() else PACKAGE.parent / "templates"


def render(name: str, variables: Mapping[str, object], user_folder: Path | None) -> str:
    """Renders a template and checks the text.

    Text of a ``.json.j2`` template must be JSON, that of a ``.py.j2`` template Python, and that of
    a ``.yaml.j2`` template YAML.

    Args:
        name: Template, relative to a template folder, such as ``deepspeed/config.json.j2``.
        variables: Everything the template may use; it cannot see anything else.
        user_folder: Folder whose templates go before the shipped ones of the same name.

    Raises:
        UsageError: There is no such template, it is wrong, uses an unknown variable, reaches
            for what the sandbox forbids, or renders text that does not parse.
    """
    if user_folder is not None and not user_folder.is_dir():
        raise UsageError(f"{user_folder} is not a folder of templates.")
    folders = [shipped_templates()] if user_folder is None else [user_folder, shipped_templates()]
    try:
        text = _environment(tuple(folders)).get_template(name).render(variables)
    except (TemplateError, OSError, *EXPRESSION_ERRORS) as error:
        raise UsageError(_describe(error, name, variables, folders)) from error
    if name.endswith(".json.j2"):
        parse_json(text, name)
    elif name.endswith(".py.j2"):
        parse_python(text, name)
    elif name.endswith(".yaml.j2"):
        parse_yaml_text(text, name)
    return text


def parse_json(text: str, name: str) -> Any:
    """Reads JSON strictly: no duplicate keys, NaN or infinity.

    Args:
        text: The JSON text.
        name: What to call it in the error.

    Raises:
        UsageError: It is not such JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} renders text that is not JSON: {error}.") from error


def parse_python(text: str, name: str) -> ast.Module:
    """Reads Python without running it.

    Args:
        text: The source text.
        name: What to call it in the error.

    Raises:
        UsageError: It is not Python.
    """
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UsageError(f"{name} renders text that is not Python: {error}.") from error


def parse_yaml_text(text: str, name: str) -> Any:
    """Reads YAML 1.1, as accelerate reads it, without duplicate keys.

    Args:
        text: The YAML text.
        name: What to call it in the error.

    Raises:
        UsageError: It is not such YAML.
    """
    try:
        return parse_yaml(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{name} renders text that is not YAML: {error}.") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} occurs twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


@cache
def _environment(folders: tuple[Path, ...]) -> SandboxedEnvironment:
    """Kept, with the templates that it has compiled; it reads again those that changed."""
    environment = SandboxedEnvironment(
        loader=FileSystemLoader(folders),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "tojson": to_json,
        "yaml": to_yaml,
        "yaml_texts": to_yaml_texts,
        "python": to_python,
        "shell": to_shell,
        "shell_words": to_shell_words,
        "torch_dtype": to_torch_dtype,
        "comment": to_comment,
    }
    return environment


def to_json(value: object) -> str:
    """The value as JSON. Raises FilterArgumentError when JSON cannot hold it."""
    _demand_defined(value)
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FilterArgumentError(f"{value!r} cannot be written as JSON: {error}") from error


def to_yaml(value: object) -> str:
    """The value as YAML 1.1 on one line. Raises FilterArgumentError when YAML cannot hold it."""
    _demand_defined(value)
    try:
        text = _one_line(value)
        same = parse_yaml(text) == value
    except (ValueError, yaml.YAMLError):
        same = False
    if not same:
        raise FilterArgumentError(f"{value!r} cannot be written as YAML")
    return text


def _one_line(value: object, *, inside: bool = False) -> str:
    if isinstance(value, dict):
        pairs = ((_one_line(key, inside=True), _one_line(value[key], inside=True)) for key in value)
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_one_line(item, inside=True) for item in value) + "]"
    if not isinstance(value, str | int | float | None):
        raise ValueError("no plain value")
    # In double quotes where a text could end early or needs escapes, plain where it reads better.
    quoted = isinstance(value, str) and (inside or not (value.isascii() and value.isprintable()))
    text: str = yaml.safe_dump(value, default_style='"' if quoted else None, width=math.inf)
    return text.removesuffix("...\n").rstrip("\n")


def to_yaml_texts(texts: Mapping[str, str]) -> str:
    """Texts by name as lines of a YAML mapping, each in a block of its own where YAML has one."""
    _demand_defined(texts)
    dumped: str = yaml.dump(dict(texts), Dumper=_Blocks, sort_keys=False, width=math.inf)
    if parse_yaml(dumped) != dict(texts):
        raise FilterArgumentError(f"{texts!r} cannot be written as YAML")
    return dumped.removesuffix("\n")


class _Blocks(yaml.SafeDumper):
    """Writes each text of several lines as a block."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Blocks.add_representer(str, _block)


def to_python(value: object) -> str:
    """A plain value as a Python literal. Raises FilterArgumentError for any other."""
    _demand_defined(value)
    if isinstance(value, str) and value.isascii():
        return json.dumps(value)  # a Python literal too, in double quotes
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value
    except (SyntaxError, ValueError):
        same = False
    if not same:
        raise FilterArgumentError(f"{text} cannot be written as a Python literal")
    return text


def to_shell(value: object) -> str:
    """The value as one word of a POSIX shell. Raises FilterArgumentError for a null character."""
    text = str(value)
    if "\0" in text:
        raise FilterArgumentError(f"{text!r} holds a null character, which no shell word can")
    return shlex.quote(text)


def to_shell_words(words: Sequence[str]) -> str:
    """Words of a POSIX shell, in each of which `HERE` becomes ``"$here"``, a variable of its."""
    _demand_defined(words)
    parts = ([to_shell(part) if part else "" for part in word.split(HERE)] for word in words)
    return " ".join('"$here"'.join(word) or "''" for word in parts)


def to_torch_dtype(value: object) -> str:
    """A dtype such as ``bf16`` as torch's name. Raises FilterArgumentError for an unknown one."""
    _demand_defined(value)
    if not isinstance(value, str | None) or value not in TORCH_DTYPES:
        raise FilterArgumentError(f"{value!r} is no dtype; there are fp32, bf16, fp16 and none")
    return TORCH_DTYPES[value]


def to_comment(value: object) -> str:
    """The value on one line: whatever could end a comment is escaped."""
    return str(value).encode("unicode_escape").decode("ascii")


def _demand_defined(value: object) -> None:
    # An undefined variable says so when it is asked for its text, not to json or repr.
    if isinstance(value, StrictUndefined):
        str(value)


def _describe(
    error: Exception, name: str, variables: Mapping[str, object], folders: list[Path]
) -> str:
    if isinstance(error, TemplateNotFound):
        places = " or ".join(str(folder) for folder in folders)
        return f"There is no template {error.name or name} in {places}."
    available = ", ".join(sorted(variables))
    message = str(getattr(error, "message", None) or error).rstrip(".")
    return f"Template {_place(error, name, folders)}: {message}. It may use: {available}."


def _place(error: Exception, name: str, folders: list[Path]) -> str:
    """File and line in which the error was raised; jinja2 writes both into the traceback."""
    line = getattr(error, "lineno", None)
    if line is not None:
        return f"{getattr(error, 'filename', None) or name}, line {line}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if any(Path(frame.filename).is_relative_to(folder) for folder in folders):
            return f"{frame.filename}, line {frame.lineno}"
    return name
