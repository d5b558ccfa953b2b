"""Why a launch was lost: the workers' notes and stacks, torchrun's report, the ends of the logs."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.outcome import Outcome

TAIL_LINES = 20
TAIL_BYTES = 16_384
# torchrun's failure report, one block a rank.
REPORT = re.compile(
    r"rank\s*:\s*(\d+)\s*\(local_rank.*?exitcode\s*:\s*(-?\d+)\s*\(pid:\s*(\d+)", re.DOTALL
)
# A rank that torchrun killed itself, because it did not end with the others.
FORCED = re.compile(r"Unable to shutdown process (\d+) via")
# First line of what faulthandler writes, whose wording changed with Python 3.13.
FATAL = re.compile(r"Fatal Python error: (.+)")
SIGNALS = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
}


def examine(folder: Path, phase: str) -> Outcome:
    """The outcome of a probe whose workers are gone.

    Args:
        folder: The launch's folder.
        phase: The last phase that the workers announced.
    """
    notes = _notes(folder)
    deaths = _deaths(folder)
    # A rank that only lost its peers may abort on its way out, in a thread of gloo.
    certain = [death for death in deaths if death.signal != signal.SIGABRT]
    if certain or (deaths and not notes):
        return _died((certain or deaths)[0], folder, phase)
    if notes:
        first = notes[0]
        reason = f"Rank {first['rank']}, phase {phase!r}: {first['reason']}"
        return Outcome(kind=first["kind"], reason=reason, log=log_tail(folder, first["rank"]))
    reason = f"The workers ended in phase {phase!r} without a word."
    return Outcome(kind="crash", reason=reason, log=log_tail(folder))


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that a signal ended."""

    rank: int
    signal: signal.Signals
    stack: str = ""


def _died(death: Death, folder: Path, phase: str) -> Outcome:
    kernel = death.signal == signal.SIGKILL
    hint = "; the kernel does this when memory runs out" if kernel else ""
    reason = f"Rank {death.rank} died of {death.signal.name} in phase {phase!r}{hint}."
    log = "\n".join(filter(None, (log_tail(folder, death.rank), death.stack)))
    return Outcome(kind="crash", reason=reason, log=log)


def _notes(folder: Path) -> list[dict[str, Any]]:
    """Failure notes, the earliest first: later ranks often only report the loss of the first."""
    notes = [json.loads(path.read_text()) for path in folder.glob("rank*.failure.json")]
    return sorted(notes, key=lambda note: float(note["at"]))


def _deaths(folder: Path) -> list[Death]:
    """Ranks that died of a signal, each once: from their own stacks, then by torchrun's report."""
    found = {death.rank: death for death in (*_reported(folder), *_left_a_stack(folder))}
    return list(found.values())


def _left_a_stack(folder: Path) -> Iterator[Death]:
    """Ranks whose fatal signal was one that can be caught; torchrun need not have seen it."""
    for path in sorted(folder.glob("rank*.fatal")):
        text = path.read_text(errors="replace")
        if match := FATAL.match(text):
            rank = int(path.stem.removeprefix("rank"))
            stack = "\n".join(text.splitlines()[:TAIL_LINES])
            yield Death(rank, SIGNALS.get(match[1], signal.SIGABRT), stack)


def _reported(folder: Path) -> Iterator[Death]:
    """What torchrun saw, but for the ranks that it ended itself."""
    report = folder / "torchrun.log"
    text = report.read_text(errors="replace") if report.exists() else ""
    forced = set(FORCED.findall(text))
    for rank, code, pid in REPORT.findall(text):
        if int(code) < 0 and -int(code) != signal.SIGTERM and pid not in forced:
            yield Death(int(rank), signal.Signals(-int(code)))


def log_tail(folder: Path, rank: int | None = None) -> str:
    """Last lines of the rank's stderr, or of every rank's, or else of torchrun's own log."""
    pattern = "*" if rank is None else str(rank)
    logs: Sequence[Path] = sorted((folder / "ranks").glob(f"*/attempt_*/{pattern}/stderr.log"))
    tails = [tail for path in logs if (tail := _tail(path))]
    return "\n".join(tails) or _tail(folder / "torchrun.log")


def _tail(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as log:
        log.seek(0, 2)
        log.seek(max(0, log.tell() - TAIL_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:])
