"""Why a launch was lost: the workers' notes, torchrun's report, the last lines of the logs."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.outcome import Outcome

TAIL_LINES = 20
TAIL_BYTES = 16_384
# torchrun's failure report, one block a rank.
REPORT = re.compile(r"rank\s*:\s*(\d+)\s*\(local_rank.*?exitcode\s*:\s*(-?\d+)", re.DOTALL)


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


def _died(death: Death, folder: Path, phase: str) -> Outcome:
    kernel = death.signal == signal.SIGKILL
    hint = "; the kernel does this when memory runs out" if kernel else ""
    reason = f"Rank {death.rank} died of {death.signal.name} in phase {phase!r}{hint}."
    return Outcome(kind="crash", reason=reason, log=log_tail(folder, death.rank))


def _notes(folder: Path) -> list[dict[str, Any]]:
    """Failure notes, the earliest first: later ranks often only report the loss of the first."""
    notes = [json.loads(path.read_text()) for path in folder.glob("rank*.failure.json")]
    return sorted(notes, key=lambda note: float(note["at"]))


def _deaths(folder: Path) -> list[Death]:
    """Ranks that died of a signal other than torchrun's own SIGTERM."""
    report = folder / "torchrun.log"
    text = report.read_text(errors="replace") if report.exists() else ""
    return [
        Death(int(rank), signal.Signals(-int(code)))
        for rank, code in REPORT.findall(text)
        if int(code) < 0 and -int(code) != signal.SIGTERM
    ]


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
