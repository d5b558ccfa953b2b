"""Lints files: reads each, finds what is wrong with it, and asks its consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.consult import Answer, Question, consult
from autotune.errors import EnvironmentFailedError
from autotune.lint.checks import findings_in, in_order
from autotune.lint.document import Document, Unreadable, read_document
from autotune.lint.effect import Effect
from autotune.lint.effects import effects_of
from autotune.lint.finding import Finding
from autotune.lint.kinds import Kind, Unknown, recognise
from autotune.lint.liveness import Liveness, question_of, settled
from autotune.lint.rules import LEVELS, Level

NOT_ASKED = Liveness(False, "--no-consumer")


@dataclass(frozen=True, slots=True)
class Linted:
    """A file after the lint.

    Attributes:
        path: As it was given.
        kind: Whose file it is.
        document: What stands in it.
        effects: What it effectively does.
        findings: In the order of the lines.
        liveness: What the consumer said of its keys.
    """

    path: Path
    kind: Kind
    document: Document
    effects: tuple[Effect, ...]
    findings: tuple[Finding, ...]
    liveness: Liveness


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that could not be linted.

    Attributes:
        path: As it was given.
        why: One line, to follow its name.
        foreign: Whether it is there, and only is no configuration that is known.
    """

    path: Path
    why: str
    foreign: bool


def lint_files(
    paths: Sequence[Path],
    *,
    versions: Mapping[str, str],
    kind: Kind | None = None,
    folder: Path | None = None,
    consumer: bool = True,
) -> list[Linted | Skipped]:
    """Lints files.

    Args:
        paths: The files.
        versions: Versions of the consumers that the files are for, as far as they are known.
        kind: Whose files they are; found out by default.
        folder: Where files that they name are looked for, the current folder by default.
        consumer: Whether the installed consumers are asked, too; where that fails, the findings are
            those of the tables, and the file says so.
    """
    place = Path() if folder is None else folder
    read = [_read(path, kind, versions, place) for path in paths]
    return _asked(read, place) if consumer else read


def _read(
    path: Path, kind: Kind | None, versions: Mapping[str, str], folder: Path
) -> Linted | Skipped:
    document = read_document(path)
    if isinstance(document, Unreadable):
        return Skipped(path, document.why, foreign=path.is_file())
    found = kind or recognise(document.data)
    if isinstance(found, Unknown):
        return Skipped(path, found.why, foreign=True)
    effects = effects_of(document, found, folder, versions)
    findings = tuple(findings_in(document, found, versions))
    return Linted(path, found, document, effects, findings, NOT_ASKED)


def _asked(items: Sequence[Linted | Skipped], folder: Path) -> list[Linted | Skipped]:
    """With what the consumers say, all of them asked in one process."""
    questions: dict[int, Question | str] = {
        position: question_of(item.kind, item.document.data, item.findings, folder)
        for position, item in enumerate(items)
        if isinstance(item, Linted)
    }
    wanted = {key: value for key, value in questions.items() if isinstance(value, Question)}
    try:
        said = consult(list(wanted.values())) if wanted else []
    except EnvironmentFailedError as error:
        said = [Answer(refused=str(error))] * len(wanted)  # the tables do without
    answers = dict(zip(wanted, said, strict=True))
    done = list(items)
    for position, question in questions.items():
        item = items[position]
        assert isinstance(item, Linted)
        if isinstance(question, str):
            done[position] = replace(item, liveness=Liveness(False, question))
            continue
        findings, live = settled(item.kind, item.document.data, item.findings, answers[position])
        ordered = tuple(in_order(item.document, findings))
        done[position] = replace(item, findings=ordered, liveness=live)
    return done


def counts(items: Sequence[Linted | Skipped]) -> dict[Level, int]:
    """How many findings of each level."""
    found = [
        finding.level for item in items if isinstance(item, Linted) for finding in item.findings
    ]
    return {level: found.count(level) for level in LEVELS}


def at_least(items: Sequence[Linted | Skipped], level: Level) -> bool:
    """Whether there is a finding of a level or a worse one."""
    worse = LEVELS[: LEVELS.index(level) + 1]
    return any(number for name, number in counts(items).items() if name in worse)
