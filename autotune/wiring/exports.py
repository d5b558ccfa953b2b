"""From a run, or from knobs that are named, to files in a dialect, and the proof of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.backends import RESTRICTIONS, backend_of
from autotune.consult import Answer, Question, consult
from autotune.errors import UsageError
from autotune.export import (
    DIALECTS,
    Exported,
    Provenance,
    Subject,
    Unmeasured,
    compare,
    export,
    fitting,
    subject_of,
    write,
)
from autotune.export.verify import Difference
from autotune.render import render
from autotune.report import find_probe
from autotune.search import Store
from autotune.setup import Setup
from autotune.space import Context, complete, make_space
from autotune.wiring.results import result_of
from autotune.workload import Script, Workload

ALL = "all"


@dataclass(frozen=True, slots=True)
class Verified:
    """What the installed consumer of a dialect made of the files.

    Attributes:
        answer: Its answer; None where nobody can be asked.
        differences: Knobs that it does not see as the notes promise.
    """

    answer: Answer | None
    differences: tuple[Difference, ...]

    @property
    def failed(self) -> bool:
        """Whether it refuses the files or sees something else."""
        refused = self.answer is not None and self.answer.refused is not None
        return refused or bool(self.differences)


def run_subject(store: Store, key: str | None) -> Subject:
    """The winner of a run, or the setup called ``key``.

    Raises:
        UsageError: There is no winner yet, or the setup was not measured.
    """
    result = result_of(store)
    wanted = key or result["winner"]
    if wanted is None:
        raise UsageError(f"{store.folder} has no winner yet; continue the sweep with --resume.")
    probe = find_probe(store.probes(), wanted)
    provenance = Provenance(
        run=result["name"],
        setup_key=wanted,
        versions=store.about["versions"],
        date=probe.finished_at,
        verdict=result["verdict"] if wanted == result["winner"] else "measured, not the winner",
    )
    templates = store.about["templates"]
    folder = None if templates is None else Path(templates)
    return subject_of(probe, provenance, folder, script_of(store))


def script_of(store: Store) -> Script | None:
    """The script of a run, if that is what its probes ran."""
    model = store.about["fingerprint"]["workload"]["model"]
    if "command" not in model:
        return None
    return Script(command=tuple(model["command"]), launcher=model["launcher"])


def named_subject(named: Mapping[str, Any], templates: Path | None) -> Subject:
    """A setup that nobody measured, out of the knobs that are named.

    A knob not named takes the value that a baseline takes.

    Raises:
        UsageError: No backend can train it, on any machine.
    """
    knobs = {name: value for name, value in named.items() if name != "gradient_accumulation"}
    setup, refusal = complete(knobs, make_space({}, asked_context(named), RESTRICTIONS))
    if refusal is not None:
        raise UsageError(
            f"The setup {setup.key} cannot be trained: {refusal.name} ({refusal.reason})."
        )
    return unmeasured(setup, templates)


def unmeasured(setup: Setup, templates: Path | None) -> Subject:
    """A setup as it is rendered now."""
    backend = backend_of(setup)
    return Subject(
        setup=setup,
        config=render(backend.template, backend.variables(setup), templates),
        provenance=Unmeasured(setup.key),
        templates=templates,
    )


def asked_context(named: Mapping[str, Any]) -> Context:
    """Nothing is known of the machine that will run it, so nothing is held against a setup."""
    workload = Workload(
        model=Script(command=(), launcher="torchrun"),
        micro_batch=named.get("micro_batch", 1),
        gradient_accumulation=named.get("gradient_accumulation", 1),
    )
    return Context(
        workload=workload, world_size=2, device="cuda", bf16="native", fp16="native", tf32=True
    )


def export_subject(subject: Subject, to: str) -> dict[str, Exported]:
    """The files by dialect: of one, or of every one that can say the setup (``all``).

    Raises:
        UsageError: There is no such dialect, or it cannot say the setup.
    """
    names = fitting(subject.setup.backend) if to == ALL else (to,)
    return {name: export(subject, name) for name in names}


def write_all(
    exported: Mapping[str, Exported], folder: Path, *, force: bool
) -> dict[str, Sequence[Path]]:
    """Writes one dialect into ``folder``, several each into a folder of its name.

    Raises:
        UsageError: A file is there and differs, or the folder cannot be written to.
    """
    single = len(exported) == 1
    return {
        name: write(item, folder if single else folder / name, force=force)
        for name, item in exported.items()
    }


def verify(setup: Setup, exported: Mapping[str, Exported]) -> dict[str, Verified]:
    """Asks the installed consumer of each dialect what it makes of the files.

    Raises:
        EnvironmentFailedError: The consumers could not be asked at all.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-verify-") as name:
        asked = dict(_questions(setup, exported, Path(name)))
        answers = dict(zip(asked, consult(list(asked.values())), strict=True))
    return {
        name: _verified(setup, item, answers[name]) if name in answers else Verified(None, ())
        for name, item in exported.items()
    }


def _questions(
    setup: Setup, exported: Mapping[str, Exported], folder: Path
) -> Iterator[tuple[str, Question]]:
    for name, item in exported.items():
        reader = DIALECTS[name].reader
        if reader is not None:
            write(item, folder / name)
            yield name, Question(reader, folder / name)


def _verified(setup: Setup, item: Exported, answer: Answer) -> Verified:
    if answer.refused is not None or answer.missing:
        return Verified(answer, ())
    return Verified(answer, tuple(compare(setup, item.notes, answer.effective)))
