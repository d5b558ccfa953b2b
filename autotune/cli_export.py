"""The commands that write a setup down: export and render."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.export import Exported, Subject
    from autotune.wiring import Verified

DIFFERS, NOT_ASKED = 1, 3
TO_HELP = "Dialect, such as deepspeed, accelerate, huggingface or launch; or all. See --dialects."

To = Annotated[str | None, typer.Option(help=TO_HELP)]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Folder to write to.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that differ.")]
Verify = Annotated[
    bool, typer.Option("--verify", help="Have the installed consumer of the files read them.")
]
Dialects = Annotated[bool, typer.Option("--dialects", help="List the dialects, and end.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    app.command()(export)
    app.command()(render)


def export(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder, such as runs/mine.", metavar="RUN")
    ] = None,
    to: To = None,
    output: Output = None,
    setup: Annotated[
        str | None, typer.Option(help="Key of another measured setup than the winner.")
    ] = None,
    force: Force = False,
    verify: Verify = False,
    dialects: Dialects = False,
    json: AsJson = False,
) -> None:
    """Write the measured configuration in the dialect of your script or launcher."""
    from autotune.wiring import export_subject, open_run, run_subject

    if dialects:
        _list_dialects(json=json)
        return
    if run is None or to is None:
        raise UsageError("Give the run's folder and --to DIALECT; --dialects lists them.")
    subject = run_subject(open_run(run), setup)
    exported = export_subject(subject, to)
    _write(subject, exported, output or run / "export", force=force, verify=verify, json=json)


def render(
    file: Annotated[
        Path | None,
        typer.Argument(help="Setup (YAML): knobs, as in a baseline.", metavar="SETUP"),
    ] = None,
    to: To = None,
    backend: Annotated[str | None, typer.Option(help="deepspeed, fsdp or ddp.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32, bf16 or fp16.")] = None,
    grad_comm_dtype: Annotated[
        str | None, typer.Option(help="Gradients on the wire: fp32, bf16 or fp16.")
    ] = None,
    zero_stage: Annotated[int | None, typer.Option(help="0 to 3; FSDP has 2 and 3.")] = None,
    bucket_bytes: Annotated[
        float | None, typer.Option(help="Of a gradient bucket on the wire, such as 25e6.")
    ] = None,
    overlap_comm: Annotated[bool | None, typer.Option(help="Reduce during the backward.")] = None,
    activation_checkpointing: Annotated[
        bool | None, typer.Option(help="Recompute each layer's forward.")
    ] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Samples a backward call.")] = None,
    gradient_accumulation: Annotated[
        int | None, typer.Option(help="Backward calls a step.")
    ] = None,
    initial_power: Annotated[
        int | None, typer.Option(help="fp16: the first loss scale is 2 to this power.")
    ] = None,
    window: Annotated[int | None, typer.Option(help="fp16: steps until the scale doubles.")] = None,
    hysteresis: Annotated[int | None, typer.Option(help="fp16: overflows tolerated.")] = None,
    minimum: Annotated[int | None, typer.Option(help="fp16: floor of the loss scale.")] = None,
    templates: Annotated[
        Path | None, typer.Option(help="Folder of templates that go before the shipped ones.")
    ] = None,
    output: Output = None,
    force: Force = False,
    verify: Verify = False,
    dialects: Dialects = False,
    json: AsJson = False,
) -> None:
    """Write any setup in any dialect, without measuring it."""
    flags = {
        "backend": backend,
        "precision": precision,
        "grad_comm_dtype": grad_comm_dtype,
        "zero_stage": zero_stage,
        "bucket_bytes": bucket_bytes,
        "overlap_comm": overlap_comm,
        "activation_checkpointing": activation_checkpointing,
        "micro_batch": micro_batch,
        "gradient_accumulation": gradient_accumulation,
        "loss_scale.initial_power": initial_power,
        "loss_scale.window": window,
        "loss_scale.hysteresis": hysteresis,
        "loss_scale.minimum": minimum,
    }
    if dialects:
        _list_dialects(json=json)
        return
    if to is None:
        raise UsageError("Give --to DIALECT; --dialects lists them.")
    _render(file, flags, to, templates, output, force=force, verify=verify, json=json)


def _render(
    file: Path | None,
    flags: Mapping[str, Any],
    to: str,
    templates: Path | None,
    output: Path | None,
    *,
    force: bool,
    verify: bool,
    json: bool,
) -> None:
    from autotune.spec import read_setup
    from autotune.wiring import export_subject, named_subject

    subject = named_subject(read_setup(file, flags), templates)
    exported = export_subject(subject, to)
    if output is None and not json:
        _print_single(exported)
    _write(subject, exported, output, force=force, verify=verify, json=json)


def _print_single(exported: Mapping[str, Exported]) -> None:
    """The one text that there is, on stdout."""
    texts = {
        name: text
        for item in exported.values()
        for name, text in item.files.items()
        if not name.endswith(".provenance.json")
    }
    if len(texts) != 1:
        names = ", ".join(texts)
        raise UsageError(f"That makes several files ({names}); give a folder with -o FOLDER.")
    (text,) = texts.values()
    print(text, end="")


def _write(
    subject: Subject,
    exported: Mapping[str, Exported],
    folder: Path | None,
    *,
    force: bool,
    verify: bool,
    json: bool,
) -> None:
    """Writes the files where a folder is given, proves them where asked, and tells of both."""
    from autotune.wiring import verify as verify_files
    from autotune.wiring import write_all

    proofs = verify_files(subject.setup, exported) if verify else {}
    written = {} if folder is None else write_all(exported, folder, force=force)
    _tell(exported, proofs)
    if json:
        dialects = {
            name: _described(exported[name], written.get(name, ()), proofs.get(name))
            for name in exported
        }
        about = {"setup": subject.setup.to_dict(), "key": subject.setup.key, "dialects": dialects}
        print(json_module.dumps(about, indent=2))
    elif folder is not None:
        print("\n".join(str(path) for paths in written.values() for path in paths))
    _end(proofs)


def _tell(exported: Mapping[str, Exported], proofs: Mapping[str, Verified]) -> None:
    several = len(exported) > 1
    for name, item in exported.items():
        place = f"{name}: " if several else ""
        for note in item.notes:
            print(f"note: {place}{note.knob}: {note.status}. {note.text}", file=sys.stderr)
        if name in proofs:
            for line in _proof_lines(proofs[name]):
                print(f"verify: {place}{line}", file=sys.stderr)


def _proof_lines(proof: Verified) -> Sequence[str]:
    answer = proof.answer
    if answer is None:
        return ["nobody can be asked; these files are only started"]
    if answer.missing:
        return [f"not verified: {', '.join(answer.missing)} is not installed"]
    named = ", ".join(f"{name} {version}" for name, version in answer.versions.items())
    who = named or "the facts pinned for it (it is not installed)"
    if answer.refused is not None:
        return [f"REFUSED by {who}: {answer.refused}"]
    lines = [
        f"DIFFERS: {item.knob} should be {item.wanted!r} and is {item.found!r} for {who}"
        for item in proof.differences
    ]
    return lines or [f"ok: by {who} it is what the setup says"]


def _described(
    exported: Exported, written: Sequence[Path], proof: Verified | None
) -> dict[str, Any]:
    about: dict[str, Any] = {
        "files": [str(path) for path in written],
        "notes": [asdict(note) for note in exported.notes],
    }
    if not written:
        about["texts"] = dict(exported.files)
    if proof is not None:
        answer = None if proof.answer is None else asdict(proof.answer)
        about["verified"] = {
            "failed": proof.failed,
            "differences": [asdict(item) for item in proof.differences],
            "answer": answer,
        }
    return about


def _end(proofs: Mapping[str, Verified]) -> None:
    """The exit code of a proof: a difference, or nobody there to ask."""
    if any(proof.failed for proof in proofs.values()):
        raise typer.Exit(DIFFERS)
    if proofs and all(proof.answer is None or proof.answer.missing for proof in proofs.values()):
        raise typer.Exit(NOT_ASKED)


def _list_dialects(*, json: bool) -> None:
    from autotune.export import DIALECTS

    if json:
        listed = {
            name: {"title": item.title, "backends": list(item.backends)}
            for name, item in DIALECTS.items()
        }
        print(json_module.dumps(listed, indent=2))
        return
    width = max(map(len, DIALECTS))
    for name, item in DIALECTS.items():
        print(f"{name:{width}}  {item.title} ({', '.join(item.backends)})")
