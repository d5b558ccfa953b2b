"""The command that looks at existing configuration files: lint."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune import __version__
from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.lint import Kind, Level, Linted, Skipped

FOUND, UNREADABLE = 1, 2
FORMATS = ("text", "json", "sarif")
KIND_HELP = "deepspeed, accelerate, huggingface or fsdp. Default: by content."
FORMAT_HELP = "Of stdout: text, json or sarif."
SARIF_HELP = "Write SARIF 2.1.0 here, for code review tools."
LEVEL_HELP = "Exit with 1 on findings from here on: error, warning or info."
EXPLAIN_HELP = "Explain a rule by its id, or all."
FIX_HELP = "Write the repaired file beside it: NAME.fixed.EXT."
FORCE_HELP = "Overwrite repaired files that differ."
CONSUMER_HELP = (
    "Have the installed parsers read the file with each key changed, to see which keys do nothing."
)
FOR_HELP = "Version that the file is for, such as deepspeed=0.16.4. Default: the installed one."
SKIP_HELP = "Pass over files that are none of these configurations."

Files = Annotated[
    list[Path] | None,
    typer.Argument(
        help="DeepSpeed, accelerate, transformers or fsdp_config files.",
        metavar="FILE...",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command()(lint)


def lint(
    files: Files = None,
    kind: Annotated[str | None, typer.Option(help=KIND_HELP)] = None,
    form: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "text",
    json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False,
    sarif: Annotated[Path | None, typer.Option(help=SARIF_HELP)] = None,
    level: Annotated[str, typer.Option(help=LEVEL_HELP)] = "warning",
    explain: Annotated[str | None, typer.Option(help=EXPLAIN_HELP, metavar="ID")] = None,
    fix: Annotated[bool, typer.Option("--fix", help=FIX_HELP)] = False,
    force: Annotated[bool, typer.Option("--force", help=FORCE_HELP)] = False,
    consumer: Annotated[bool, typer.Option("--consumer/--no-consumer", help=CONSUMER_HELP)] = True,
    versions: Annotated[
        list[str] | None, typer.Option("--for", help=FOR_HELP, metavar="PACKAGE=VERSION")
    ] = None,
    skip_unrecognised: Annotated[bool, typer.Option("--skip-unrecognised", help=SKIP_HELP)] = False,
) -> None:
    """Show what existing configuration files really do, and what is wrong with them."""
    from autotune.lint import installed, lint_files, named

    if explain is not None:
        _explain(explain, json=json or form == "json")
        return
    if not files:
        raise UsageError("Give a file, or --explain ID; --explain all lists the rules.")
    shape = "json" if json else _one_of("--format", form, FORMATS)
    least, whose = _level(level), _kind(kind)
    known = {**installed(), **named(versions or ())}
    items = lint_files(files, versions=known, kind=whose, consumer=consumer)
    if skip_unrecognised:
        items = [item for item in items if not getattr(item, "foreign", False)]
    _print(items, known, shape)
    if sarif is not None:
        sarif.write_text(_sarif(items), encoding="utf-8")
    if fix:
        _fix(items, known, force=force)
    _end(items, least)


def _one_of(option: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise UsageError(f"{option} is {value}; allowed are {', '.join(allowed)}.")
    return value


def _level(value: str) -> Level:
    from autotune.lint import LEVELS

    found = _one_of("--level", value, LEVELS)
    return next(level for level in LEVELS if level == found)


def _kind(value: str | None) -> Kind | None:
    from autotune.lint import KINDS

    if value is None:
        return None
    found = _one_of("--kind", value, KINDS)
    return next(kind for kind in KINDS if kind == found)


def _explain(name: str, *, json: bool) -> None:
    from autotune.lint import RULES, explain, rules_report

    if name != "all" and name not in RULES:
        raise UsageError(f"There is no rule {name}; --explain all lists them.")
    rules = list(RULES.values()) if name == "all" else [RULES[name]]
    if json:
        print(json_module.dumps(rules_report(rules), indent=2))
    else:
        print("\n\n".join("\n".join(explain(rule)) for rule in rules))


def _print(items: Sequence[Linted | Skipped], versions: Mapping[str, str], shape: str) -> None:
    """The report on stdout; what could not be read, and how much was found, on stderr."""
    from autotune.lint import report

    about = report(items, versions)
    if shape == "json":
        print(json_module.dumps(about, indent=2))
    elif shape == "sarif":
        print(_sarif(items), end="")
    else:
        _print_text(about)
    for file in about["files"]:
        if file["error"] is not None:
            print(f"error: {file['file']}: {file['error']}", file=sys.stderr)


def _print_text(about: Mapping[str, Any]) -> None:
    from autotune.console import lint_lines, make_console, summary_line

    console = make_console(stderr=False)
    for file in about["files"]:
        if file["error"] is None:
            for line in lint_lines(file):
                console.print(line, soft_wrap=True)
    print(summary_line(about), file=sys.stderr)


def _sarif(items: Sequence[Linted | Skipped]) -> str:
    from autotune.lint import sarif

    found = sarif(items, tool_version=__version__, folder=Path())
    return json_module.dumps(found, indent=2) + "\n"


def _fix(items: Sequence[Linted | Skipped], versions: Mapping[str, str], *, force: bool) -> None:
    """Writes what could be repaired; an original is never touched."""
    from autotune.lint import Linted, fix, fixed_path

    for item in items:
        if not isinstance(item, Linted):
            continue
        fixed = fix(item, versions)
        for finding in fixed.left:
            print(f"not repaired: {item.path}: {finding.text}", file=sys.stderr)
        if not fixed.repaired:
            print(f"nothing to repair: {item.path}", file=sys.stderr)
            continue
        path = fixed_path(item.path)
        if path.exists() and not force and path.read_text(encoding="utf-8") != fixed.text:
            raise UsageError(f"{path} is there and differs; --force overwrites it.")
        path.write_text(fixed.text, encoding="utf-8")
        what = f"{len(fixed.repaired)} repaired, comments and order are as they were"
        print(f"wrote {path}: {what}", file=sys.stderr)


def _end(items: Sequence[Linted | Skipped], least: Level) -> None:
    from autotune.lint import Skipped, at_least

    if any(isinstance(item, Skipped) for item in items):
        raise typer.Exit(UNREADABLE)
    if at_least(items, least):
        raise typer.Exit(FOUND)
