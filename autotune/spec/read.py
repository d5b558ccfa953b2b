"""From a sweep file to a `Spec`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from autotune.errors import UsageError
from autotune.request import Measure
from autotune.spec.explain import validate
from autotune.spec.faults import Fault, Place, report, shorten
from autotune.spec.hf import hf_faults, read_hf
from autotune.spec.model import BaselineSection, SweepFile, WorkloadSection
from autotune.spec.model import Gpt as GptSection
from autotune.spec.script import Command, read_script
from autotune.spec.yaml_reader import MOST_BYTES, Document, read_yaml
from autotune.workload import Gpt, Model, PythonFactory, Workload

KINDS: tuple[Literal["deepspeed", "accelerate"], ...] = ("deepspeed", "accelerate")
OWN = tuple(f"{kind}_config" for kind in KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The real run, which the probes stand for.

    Attributes:
        world_size: Its ranks.
        steps: Its optimizer steps.
        learning_rate: Its learning rate.
    """

    world_size: int | None
    steps: int | None
    learning_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When a sweep stops: at whichever limit comes first; at least one is given.

    Attributes:
        minutes: Wall time.
        probes: Number of measurements.
    """

    minutes: float | None
    probes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnConfig:
    """The user's own configuration file.

    Attributes:
        kind: Whose it is.
        path: Where it is; absolute.
    """

    kind: Literal["deepspeed", "accelerate"]
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A sweep file that has been read and found sound.

    Attributes:
        name: Name of the run; safe as a folder.
        workload: What the probes train.
        ranks: Processes of a launch; ``None`` for one a GPU, or two without a GPU.
        deadline_seconds: Longest that one probe may take.
        probes_per_launch: Probes after which a launch is replaced.
        axes: Values of each knob that the file lists, by name; those of loss scaling as
            ``loss_scale.window``. A fixed knob has one value.
        baseline: Value of each knob that the file names for today's setup; named as in ``axes``.
        target: The real run, if the file describes it.
        gates: Limit of each gate that the file changes, by the gate's name, such as
            ``relative-error``.
        budget: When to stop.
        margin: Gains below it are not worth a change; 0.01 is 1 %.
        templates: Folder of the user's own templates; absolute.
        measure: How long a probe measures.
        gate_steps: Optimizer steps of the short training run that the gates judge.
        trace_steps: Optimizer steps of the fp16 run from which loss scaling is replayed.
        source: The sweep file; absolute.
        home: Folder from which relative paths in it start; absolute.
        command: The script that stood on the command line in place of the file.
        own: The configuration file that the baseline is read from.
    """

    name: str
    workload: Workload
    ranks: int | None
    deadline_seconds: float
    probes_per_launch: int
    axes: Mapping[str, tuple[Any, ...]]
    baseline: Mapping[str, Any]
    target: Target | None
    gates: Mapping[str, float]
    budget: Budget
    margin: float
    templates: Path | None
    measure: Measure
    gate_steps: int
    trace_steps: int
    source: Path
    home: Path
    command: Command | None = None
    own: OwnConfig | None = None


def read_spec(path: Path, home: Path | None = None, command: Command | None = None) -> Spec:
    """Reads a sweep file.

    Args:
        path: The file.
        home: Folder from which relative paths in it start; its own by default.
        command: The script on autotune's own command line, for a workload that is a script.

    Raises:
        UsageError: It cannot be read, or something in it is wrong. The message names every
            fault on a line of its own: ``path:line: where: what; allowed: ...``.
    """
    document = read_yaml(read_text(path))
    sweep, found = validate(document)
    home = (home or path.parent).absolute()
    faults = [
        *found,
        *_folders(document, home),
        *_own_files(document, home),
        *hf_faults(document, home),
    ]
    if sweep is None or faults:
        raise UsageError(report(printable(path), faults))
    return _spec(sweep, path.absolute(), home, command)


def read_text(path: Path, kind: str = "sweep file") -> str:
    """The file as text.

    Args:
        path: The file.
        kind: What it should be, for errors.

    Raises:
        UsageError: It cannot be opened, is too large, or is not UTF-8.
    """
    name = printable(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{name}: cannot be read ({reason}); give the path of a {kind}") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"{name}: is larger than {MOST_BYTES} bytes; give a {kind}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{name}:{line}: byte 0x{content[error.start]:02x} is not UTF-8; "
            f"save the {kind} as UTF-8 text"
        ) from error


def printable(path: Path) -> str:
    """The path as one line of a message."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def _folders(document: Document, folder: Path) -> Iterator[Fault]:
    """A fault if ``templates`` names what is no folder."""
    place: Place = ("templates",)
    named = document.data.get("templates") if isinstance(document.data, dict) else None
    if isinstance(named, str) and named and not _is_folder(folder / named):
        words = f"{shorten(named)} is not a folder; allowed: a path from the sweep file's folder"
        yield Fault(document.line(place), place, words)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # no permission, too long, a NUL
        return False


def _spec(sweep: SweepFile, source: Path, home: Path, command: Command | None) -> Spec:
    local = sweep.launch.local
    target = sweep.target
    return Spec(
        name=sweep.name,
        workload=_workload(sweep.workload, home, command),
        ranks=local.ranks,
        deadline_seconds=local.deadline_seconds,
        probes_per_launch=local.probes_per_launch,
        axes=flat(sweep.space),
        baseline=_baseline(sweep.baseline),
        target=None if target is None else Target(**target.model_dump()),
        gates={name.replace("_", "-"): limit for name, limit in flat(sweep.gates).items()},
        budget=Budget(**sweep.budget.model_dump()),
        margin=sweep.margin,
        templates=None if sweep.templates is None else home / sweep.templates,
        measure=Measure(**sweep.measure.model_dump(exclude={"gate_steps", "trace_steps"})),
        gate_steps=sweep.measure.gate_steps,
        trace_steps=sweep.measure.trace_steps,
        source=source,
        home=home,
        command=command,
        own=_own(sweep.baseline, home),
    )


def _baseline(section: BaselineSection) -> dict[str, Any]:
    """The knobs that the file names itself."""
    return {name: value for name, value in flat(section).items() if name not in OWN}


def _own(section: BaselineSection, home: Path) -> OwnConfig | None:
    """The configuration file that it names; `_own_files` saw that there is at most one."""
    for kind in KINDS:
        named = getattr(section, f"{kind}_config")
        if named is not None:
            return OwnConfig(kind=kind, path=home / named)
    return None


def _own_files(document: Document, folder: Path) -> Iterator[Fault]:
    """Faults of the configuration files that the baseline names."""
    section = document.data.get("baseline") if isinstance(document.data, dict) else None
    files: dict[str, Any] = section if isinstance(section, dict) else {}
    given = [name for name in OWN if name in files]
    for name in given:
        place: Place = ("baseline", name)
        named = files[name]
        if len(given) > 1:
            words = f"{' and '.join(OWN)} are both given; keep one"
            yield Fault(document.line(place), place, words)
            return
        if isinstance(named, str) and named and not _is_file(folder / named):
            words = f"{shorten(named)} is not a file; allowed: a path from the sweep file's folder"
            yield Fault(document.line(place), place, words)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def flat(section: BaseModel) -> dict[str, Any]:
    """Knobs that the file gives, by dotted name."""
    knobs: dict[str, Any] = {}
    for name, value in section:
        if isinstance(value, BaseModel):
            knobs.update({f"{name}.{inner}": item for inner, item in flat(value).items()})
        elif value is not None:
            knobs[name] = value
    return knobs


def _workload(section: WorkloadSection, folder: Path, command: Command | None) -> Workload:
    return Workload(
        model=_model(section, folder, command),
        micro_batch=section.micro_batch,
        gradient_accumulation=section.gradient_accumulation,
        seed=section.seed,
    )


def _model(section: WorkloadSection, folder: Path, command: Command | None) -> Model:
    """The one model that the section names; `validate` saw that there is exactly one."""
    if section.script is not None:
        return read_script(section.script.command, section.script.launcher, command, folder)
    if command is not None:
        raise UsageError(
            "A script stands after --, but the sweep file's workload names another model; give "
            "it workload.script: {} instead."
        )
    if section.hf is not None:
        return read_hf(section.model_dump(), folder)
    return _factory(section, folder) if section.gpt is None else _gpt(section.gpt)


def _factory(section: WorkloadSection, folder: Path) -> PythonFactory:
    assert section.python is not None  # validate() saw exactly one model
    return PythonFactory(path=section.python, args=section.args or {}, folder=str(folder))


def _gpt(section: GptSection) -> Gpt:
    return Gpt(
        layers=section.layers,
        width=section.width,
        heads=section.heads,
        kv_heads=section.kv_heads or section.heads,
        vocab=section.vocab,
        sequence=section.sequence,
        mlp_ratio=section.ratio,
        style=section.style,
    )
