"""From a sweep file to a `Spec`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from autotune.errors import UsageError
from autotune.request import Measure
from autotune.spec.explain import validate
from autotune.spec.faults import Fault, Place, report, shorten
from autotune.spec.model import Gpt as GptSection
from autotune.spec.model import SweepFile, WorkloadSection
from autotune.spec.yaml_reader import MOST_BYTES, Document, read_yaml
from autotune.workload import Gpt, PythonFactory, Workload


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


def read_spec(path: Path, home: Path | None = None) -> Spec:
    """Reads a sweep file.

    Args:
        path: The file.
        home: Folder from which relative paths in it start; its own by default.

    Raises:
        UsageError: It cannot be read, or something in it is wrong. The message names every
            fault on a line of its own: ``path:line: where: what; allowed: ...``.
    """
    document = read_yaml(_text(path))
    sweep, found = validate(document)
    home = (home or path.parent).absolute()
    faults = [*found, *_folders(document, home)]
    if sweep is None or faults:
        raise UsageError(report(_printable(path), faults))
    return _spec(sweep, path.absolute(), home)


def _text(path: Path) -> str:
    """The file as text.

    Raises:
        UsageError: It cannot be opened, is too large, or is not UTF-8.
    """
    name = _printable(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{name}: cannot be read ({reason}); give the path of a sweep file"
        ) from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"{name}: is larger than {MOST_BYTES} bytes; give a sweep file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{name}:{line}: byte 0x{content[error.start]:02x} is not UTF-8; "
            "save the sweep file as UTF-8 text"
        ) from error


def _printable(path: Path) -> str:
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


def _spec(sweep: SweepFile, source: Path, home: Path) -> Spec:
    local = sweep.launch.local
    target = sweep.target
    return Spec(
        name=sweep.name,
        workload=_workload(sweep.workload, home),
        ranks=local.ranks,
        deadline_seconds=local.deadline_seconds,
        probes_per_launch=local.probes_per_launch,
        axes=_flat(sweep.space),
        baseline=_flat(sweep.baseline),
        target=None if target is None else Target(**target.model_dump()),
        gates={name.replace("_", "-"): limit for name, limit in _flat(sweep.gates).items()},
        budget=Budget(**sweep.budget.model_dump()),
        margin=sweep.margin,
        templates=None if sweep.templates is None else home / sweep.templates,
        measure=Measure(**sweep.measure.model_dump(exclude={"gate_steps", "trace_steps"})),
        gate_steps=sweep.measure.gate_steps,
        trace_steps=sweep.measure.trace_steps,
        source=source,
        home=home,
    )


def _flat(section: BaseModel) -> dict[str, Any]:
    """Knobs that the file gives, by dotted name."""
    knobs: dict[str, Any] = {}
    for name, value in section:
        if isinstance(value, BaseModel):
            knobs.update({f"{name}.{inner}": item for inner, item in _flat(value).items()})
        elif value is not None:
            knobs[name] = value
    return knobs


def _workload(section: WorkloadSection, folder: Path) -> Workload:
    return Workload(
        model=_factory(section, folder) if section.gpt is None else _gpt(section.gpt),
        micro_batch=section.micro_batch,
        gradient_accumulation=section.gradient_accumulation,
        seed=section.seed,
    )


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
