"""The command line: parse, wire, exit code. Heavy imports wait until a command needs them."""

from __future__ import annotations

import json as json_module
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune import __version__, cli_export, cli_lint
from autotune.errors import AutotuneError, UsageError

if TYPE_CHECKING:
    from types import FrameType

    from autotune.spec import Command
    from autotune.sweep import End
    from autotune.wiring import Session

UNDECIDED, INTERRUPTED = 1, 130
DECIDED = ("confirmed", "keep-baseline")
DEFAULT_RUNS = Path("runs")

app = typer.Typer(
    name="autotune",
    help="Find, by measuring, the DeepSpeed, FSDP or DDP setup with the fastest backward pass.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

SweepFile = Annotated[Path, typer.Argument(help="Sweep file (YAML).", metavar="FILE")]
RunFolder = Annotated[Path, typer.Argument(help="Run folder, such as runs/mine.", metavar="RUN")]
RunsFolder = Annotated[Path, typer.Option(help="Folder that holds the runs.")]
BudgetText = Annotated[
    str | None,
    typer.Option(help="For all phases, such as 2m, 1h or 60p (probes); in place of the file's."),
]
ScriptWords = Annotated[
    list[str] | None,
    typer.Argument(
        help="Your training script and its arguments, after --, for a workload that is a script.",
        metavar="[-- SCRIPT ARGUMENT...]",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


cli_export.register(app)
cli_lint.register(app)


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
def plan(
    file: SweepFile,
    script: ScriptWords = None,
    runs: RunsFolder = DEFAULT_RUNS,
    json: AsJson = False,
) -> None:
    """Show what a sweep would try, what was ruled out and why, and what it would cost."""
    from autotune.console import make_console, make_reporter, plan_lines
    from autotune.wiring import describe_plan, make_plan

    made = make_plan(file, command=_given(script))
    with (
        tempfile.TemporaryDirectory(prefix="autotune-plan-") as folder,
        make_reporter(make_console(stderr=True)) as reporter,
    ):
        described = describe_plan(made, runs, Path(folder), reporter)
    if json:
        _print_json(described)
        return
    console = make_console(stderr=False)
    for line in plan_lines(described):
        console.print(line, markup=False, soft_wrap=True)


@app.command()
def sweep(
    file: Annotated[
        Path | None, typer.Argument(help="Sweep file (YAML).", metavar="FILE", show_default=False)
    ] = None,
    script: ScriptWords = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run; start it if there is none.")
    ] = False,
    budget: BudgetText = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="Measure nothing: draw from the records of this run. FILE may then change the "
            "budget or the margin; by default the run's own is used.",
            metavar="RUN",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draws of a replay.")] = 0,
    runs: RunsFolder = DEFAULT_RUNS,
    json: AsJson = False,
) -> None:
    """Search, race and confirm the setup with the highest backward-pass throughput."""
    from autotune.console import make_console, make_reporter
    from autotune.spec import read_budget
    from autotune.wiring import make_plan, make_replay, make_sweep

    limit = None if budget is None else read_budget(budget)
    if file is None and replay is None:
        raise UsageError("Give the sweep file, such as sweeps/quickstart.yaml, or --replay RUN.")
    with make_reporter(make_console(stderr=True)) as reporter:
        if replay is not None:
            if resume:
                raise UsageError("--replay starts afresh each time; leave --resume out.")
            session = make_replay(replay, reporter, file=file, budget=limit, seed=seed)
        else:
            assert file is not None
            made = make_plan(file, budget=limit, command=_given(script))
            folder = runs / made.plan.spec.name
            session = make_sweep(made, folder, reporter, resume=resume)
        end = _run_interruptibly(session)
    options = ["--resume", *_budget_option(budget), *_runs_option(runs)]
    again = ["sweep", str(file), *options, *(("--", *script) if script else ())]
    _finish(session, end, again, json=json)


@app.command()
def confirm(
    run: RunFolder,
    setup: Annotated[
        list[str] | None,
        typer.Option(help="Key of a candidate; may be given more than once. Default: the run's."),
    ] = None,
    launches: Annotated[
        int | None,
        typer.Option(min=1, help="At most as many. Default: as many as their spread asks for."),
    ] = None,
    budget: BudgetText = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the last confirmation.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Confirm the candidates of a run again, on fresh launches; nothing from before counts."""
    from autotune.console import make_console, make_reporter
    from autotune.spec import read_budget
    from autotune.wiring import make_confirmation

    with make_reporter(make_console(stderr=True)) as reporter:
        session = make_confirmation(
            run,
            reporter,
            keys=setup or [],
            launches=launches,
            budget=None if budget is None else read_budget(budget),
            resume=resume,
        )
        end = _run_interruptibly(session)
    again = ["confirm", str(run), "--resume", *_budget_option(budget)]
    _finish(session, end, again, json=json)


def _given(words: Sequence[str] | None) -> Command | None:
    """The script on the command line; it starts from the current folder."""
    from autotune.spec import Command

    return Command(words=tuple(words), folder=Path.cwd()) if words else None


def _run_interruptibly(session: Session) -> End:
    """Runs the session; Ctrl-C stops it after the running probe, a second one at once."""
    previous = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, _interrupter(session))
    try:
        return session.run()
    finally:
        signal.signal(signal.SIGINT, previous)


def _finish(session: Session, end: End, again: Sequence[str], *, json: bool) -> None:
    """Writes and prints the result, and ends with the exit code of its verdict."""
    from autotune.console import (
        note_lines,
        numerics_lines,
        spent_lines,
        verdict_lines,
        warning_lines,
    )
    from autotune.wiring import write_result

    result = write_result(session.store)
    if json:
        _print_json(result)
    else:
        print("\n".join([*verdict_lines(result), *numerics_lines(result)]))
    if end == "interrupted":
        print(f"Interrupted; continue with: autotune {shlex.join(again)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    for line in (*note_lines(result), *spent_lines(result), *warning_lines(result)):
        print(line, file=sys.stderr)
    if session.store.folder is None:
        print("Replayed from records: nothing was measured or written.", file=sys.stderr)
    else:
        print(f"next: {_next_step(session.store.folder, result)}", file=sys.stderr)
    if result["verdict"] not in DECIDED:
        raise typer.Exit(UNDECIDED)


def _runs_option(runs: Path) -> list[str]:
    return [] if runs == DEFAULT_RUNS else ["--runs", str(runs)]


def _budget_option(budget: str | None) -> list[str]:
    return [] if budget is None else ["--budget", budget]


def _next_step(folder: Path, result: Mapping[str, Any]) -> str:
    """The command that most users want now."""
    if result["winner"] in (None, result["baseline"]):
        return shlex.join(["autotune", "show", str(folder)])
    if result["verdict"] != "confirmed":
        return shlex.join(["autotune", "confirm", str(folder)])
    return shlex.join(["autotune", "export", str(folder), "--to", "launch"])


def _interrupter(session: Session) -> Any:
    """The first Ctrl-C stops after the running probe, the second at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        session.sweep.interrupt()
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
    from autotune.console import (
        failure_lines,
        gate_lines,
        gate_table,
        left_lines,
        make_console,
        note_lines,
        numerics_lines,
        result_table,
        spent_lines,
        verdict_lines,
        warning_lines,
    )

    console = make_console(stderr=False)
    for line in (*verdict_lines(result), *numerics_lines(result)):
        console.print(line, markup=False, soft_wrap=True)
    console.print(result_table(result))
    gates = gate_table(result)
    if gates is not None:
        console.print(gates)
    setups = (*failure_lines(result), *gate_lines(result), *left_lines(result))
    for line in (*setups, *spent_lines(result)):
        console.print(line, markup=False, soft_wrap=True)
    for line in (*note_lines(result), *warning_lines(result)):
        print(line, file=sys.stderr)


@app.command()
def doctor(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="With --noise: a sweep file whose baseline is measured; default a small model.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    noise: Annotated[
        bool, typer.Option("--noise", help="Measure the baseline against itself.")
    ] = False,
    launches: Annotated[int, typer.Option(min=2, help="Fresh launches of --noise.")] = 4,
    json: AsJson = False,
) -> None:
    """Show what this machine can do, and with --noise which differences it can resolve."""
    if noise:
        _doctor_noise(file, launches, json=json)
        return
    if file is not None:
        raise UsageError("A sweep file is only used with --noise.")
    from autotune.launch import describe_machine

    facts = describe_machine().facts
    if json:
        _print_json(facts)
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:{width}}  {_plain(value)}")


def _doctor_noise(file: Path | None, launches: int, *, json: bool) -> None:
    from autotune.console import make_console, make_reporter, noise_lines
    from autotune.wiring import describe_noise

    with make_reporter(make_console(stderr=True)) as reporter:
        found = describe_noise(file, launches, reporter)
    if json:
        _print_json(found)
        return
    print("\n".join(noise_lines(found)))


def _plain(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
