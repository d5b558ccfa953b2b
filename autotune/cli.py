"""The command line: parse, wire, exit code. Heavy imports wait until a command needs them."""

from __future__ import annotations

import json as json_module
import shlex
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune import __version__
from autotune.errors import AutotuneError

if TYPE_CHECKING:
    from types import FrameType

    from autotune.sweep import Sweep

UNDECIDED, INTERRUPTED = 1, 130

app = typer.Typer(
    name="autotune",
    help="Find, by measuring, the DeepSpeed or FSDP setup with the fastest backward pass.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

SweepFile = Annotated[Path, typer.Argument(help="Sweep file (YAML).", metavar="FILE")]
RunFolder = Annotated[Path, typer.Argument(help="Run folder, such as runs/mine.", metavar="RUN")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def main() -> None:
    """Runs the command line; errors that a user can act on end it without a traceback."""
    try:
        app()
    except AutotuneError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _print_json(value: Mapping[str, Any]) -> None:
    print(json_module.dumps(value, indent=2))


@app.command()
def plan(file: SweepFile, json: AsJson = False) -> None:
    """Show what a sweep would try, what was ruled out and why."""
    from autotune.wiring import describe_plan, make_plan

    described = describe_plan(make_plan(file))
    if json:
        _print_json(described)
        return
    from autotune.console import make_console, plan_lines

    console = make_console(stderr=False)
    for line in plan_lines(described):
        console.print(line, markup=False, soft_wrap=True)


@app.command()
def sweep(
    file: SweepFile,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run; start it if there is none.")
    ] = False,
    runs: Annotated[Path, typer.Option(help="Folder that holds the runs.")] = Path("runs"),
    json: AsJson = False,
) -> None:
    """Search the setup with the highest backward-pass throughput by short real probes."""
    from autotune.console import make_console, make_reporter, verdict_lines
    from autotune.wiring import make_plan, make_sweep, write_result

    made = make_plan(file)
    with make_reporter(make_console(stderr=True)) as reporter:
        running, store = make_sweep(made, runs / made.plan.spec.name, reporter, resume=resume)
        previous = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, _interrupter(running))
        try:
            end = running.run()
        finally:
            signal.signal(signal.SIGINT, previous)
    result = write_result(store)
    if json:
        _print_json(result)
    else:
        print("\n".join(verdict_lines(result)))
    again = [*("autotune", "sweep", str(file), "--resume"), *_runs_option(runs)]
    if end == "interrupted":
        print(f"Interrupted; continue with: {shlex.join(again)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    for warning in result["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"next: {_next_step(store.folder, result)}", file=sys.stderr)


def _runs_option(runs: Path) -> list[str]:
    return [] if runs == Path("runs") else ["--runs", str(runs)]


def _next_step(folder: Path, result: Mapping[str, Any]) -> str:
    """The command that most users want now."""
    if result["winner"] in (None, result["baseline"]):
        return shlex.join(["autotune", "show", str(folder)])
    return shlex.join(["autotune", "export", str(folder), "--to", "launch"])


def _interrupter(running: Sweep) -> Any:
    """The first Ctrl-C stops after the running probe, the second at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        running.interrupt()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("Stopping after the running probe; Ctrl-C again stops now.", file=sys.stderr)

    return handle


@app.command()
def show(run: RunFolder, json: AsJson = False) -> None:
    """Show every setup that a run measured, and the verdict."""
    from autotune.wiring import open_run, result_of

    result = result_of(open_run(run))
    if json:
        _print_json(result)
        return
    from autotune.console import failure_lines, make_console, result_table, verdict_lines

    console = make_console(stderr=False)
    for line in verdict_lines(result):
        console.print(line, markup=False, soft_wrap=True)
    console.print(result_table(result))
    for line in failure_lines(result):
        console.print(line, markup=False, soft_wrap=True)
    for warning in result["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)


@app.command()
def export(
    run: RunFolder,
    to: Annotated[str, typer.Option(help="deepspeed, fsdp or launch.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder; default RUN/export.")
    ] = None,
    setup: Annotated[
        str | None, typer.Option(help="Key of another measured setup than the winner.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that differ.")] = False,
    json: AsJson = False,
) -> None:
    """Write the measured configuration, and a launch script that uses it."""
    from autotune.wiring import export_run, open_run

    store = open_run(run)
    written, notes = export_run(store, to, output or run / "export", setup, force=force)
    for note in notes:
        print(f"note: {note.knob}: {note.status}. {note.text}", file=sys.stderr)
    if json:
        _print_json(
            {"files": [str(path) for path in written], "notes": [asdict(note) for note in notes]}
        )
    else:
        print("\n".join(str(path) for path in written))


@app.command()
def doctor(json: AsJson = False) -> None:
    """Show what this machine can do."""
    from autotune.launch import describe_machine

    facts = describe_machine().facts
    if json:
        _print_json(facts)
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:{width}}  {_plain(value)}")


def _plain(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
