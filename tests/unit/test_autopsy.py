import json
from pathlib import Path

import pytest

from autotune.launch.autopsy import TAIL_LINES, examine, log_tail

REPORT = """
============================================================
autotune.probe FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:00
  host      : here
  rank      : 1 (local_rank: 1)
  exitcode  : {second} (pid: 2)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : here
  rank      : 0 (local_rank: 0)
  exitcode  : {first} (pid: 1)
  error_file: <N/A>
============================================================
"""


def note(folder: Path, rank: int, at: float, reason: str, kind: str = "crash") -> None:
    text = json.dumps({"at": at, "rank": rank, "kind": kind, "reason": reason})
    (folder / f"rank{rank}.failure.json").write_text(text)


def report(folder: Path, first: int, second: int) -> None:
    (folder / "torchrun.log").write_text(REPORT.format(first=first, second=second))


def test_the_earliest_note_is_the_reason(tmp_path: Path) -> None:
    note(tmp_path, 0, 2.0, "connection closed by peer")
    note(tmp_path, 1, 1.0, "the real cause", kind="oom")
    report(tmp_path, 17, 17)
    outcome = examine(tmp_path, "build")
    assert outcome.kind == "oom"
    assert outcome.reason == "Rank 1, phase 'build': the real cause"


def test_a_signal_comes_before_the_notes_of_ranks_that_only_lost_their_peer(
    tmp_path: Path,
) -> None:
    note(tmp_path, 0, 1.0, "connection closed by peer")
    report(tmp_path, 17, -9)
    reason = examine(tmp_path, "timed").reason
    assert reason is not None
    assert reason.startswith("Rank 1 died of SIGKILL in phase 'timed'")


def test_the_sigterm_that_torchrun_sends_to_the_others_is_not_a_cause(tmp_path: Path) -> None:
    note(tmp_path, 0, 1.0, "the real cause")
    report(tmp_path, 17, -15)
    assert examine(tmp_path, "timed").reason == "Rank 0, phase 'timed': the real cause"


def test_a_rank_that_torchrun_had_to_kill_is_not_a_cause(tmp_path: Path) -> None:
    note(tmp_path, 0, 1.0, "the real cause")
    report(tmp_path, 17, -9)
    log = tmp_path / "torchrun.log"
    forced = "Unable to shutdown process 2 via Signals.SIGTERM, forcefully exiting via SIGKILL\n"
    log.write_text(forced + log.read_text())
    assert examine(tmp_path, "timed").reason == "Rank 0, phase 'timed': the real cause"


def test_a_rank_that_aborts_on_its_way_out_is_not_the_cause(tmp_path: Path) -> None:
    note(tmp_path, 1, 1.0, "the real cause")
    report(tmp_path, -6, 17)
    assert examine(tmp_path, "timed").reason == "Rank 1, phase 'timed': the real cause"


def test_an_abort_without_any_note_is_the_cause(tmp_path: Path) -> None:
    report(tmp_path, -6, -15)
    assert examine(tmp_path, "timed").reason == "Rank 0 died of SIGABRT in phase 'timed'."


def stack(folder: Path, rank: int, error: str) -> None:
    frames = "".join(f'  File "work.py", line {number} in step\n' for number in range(50))
    text = f"Fatal Python error: {error}\n\nCurrent thread (most recent call first):\n{frames}"
    (folder / f"rank{rank}.fatal").write_text(text)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("Segmentation fault", "SIGSEGV"),
        ("Bus error", "SIGBUS"),
        ("Floating-point exception", "SIGFPE"),
        ("Illegal instruction", "SIGILL"),
    ],
)
def test_a_stack_of_a_fatal_signal_is_the_cause_even_without_torchruns_report(
    tmp_path: Path, error: str, name: str
) -> None:
    note(tmp_path, 0, 1.0, "connection closed by peer")
    (tmp_path / "rank0.fatal").write_text("")
    stack(tmp_path, 1, error)
    outcome = examine(tmp_path, "timed")
    assert outcome.reason == f"Rank 1 died of {name} in phase 'timed'."
    assert outcome.log.startswith(f"Fatal Python error: {error}")
    assert len(outcome.log.splitlines()) == TAIL_LINES


def test_a_report_that_missed_the_first_death_does_not_hide_its_stack(tmp_path: Path) -> None:
    stack(tmp_path, 0, "Segmentation fault")
    note(tmp_path, 1, 1.0, "connection closed by peer")
    report(tmp_path, -15, 17)
    assert examine(tmp_path, "wire").reason == "Rank 0 died of SIGSEGV in phase 'wire'."


def test_a_rank_that_aborts_for_the_loss_of_a_peer_is_not_the_cause(tmp_path: Path) -> None:
    stack(tmp_path, 0, "Aborted")
    report(tmp_path, -6, -9)
    reason = examine(tmp_path, "wire").reason
    assert reason is not None
    assert reason.startswith("Rank 1 died of SIGKILL")


def test_without_notes_or_report_the_outcome_is_a_crash_with_torchruns_log(
    tmp_path: Path,
) -> None:
    (tmp_path / "torchrun.log").write_text("nothing was said")
    outcome = examine(tmp_path, "start")
    assert (outcome.kind, outcome.log) == ("crash", "nothing was said")


def test_the_tail_is_the_last_lines_of_the_rank_even_of_a_large_log(tmp_path: Path) -> None:
    folder = tmp_path / "ranks" / "id" / "attempt_0" / "1"
    folder.mkdir(parents=True)
    lines = [f"line {number}" for number in range(100_000)]
    (folder / "stderr.log").write_bytes("\n".join(lines).encode() + b"\n\xff\xfe")
    assert log_tail(tmp_path, 1).splitlines()[:-1] == lines[-(TAIL_LINES - 1) :]
