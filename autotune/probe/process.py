"""What every process of a launch does: it leaves notes, and ends with its controller."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import psutil
import torch

from autotune.errors import UsageError

WATCH_SECONDS = 0.5
FAILED_EXIT = 17  # so that a worker's own failure is told from a signal in torchrun's report
Frame = traceback.FrameSummary


def enroll(folder: Path, rank: int) -> None:
    """Makes this process one of the launch: its stacks and its id go to the launch's folder."""
    # A fatal signal leaves its stack there; the file stays open to the very end.
    faulthandler.enable((folder / f"rank{rank}.fatal").open("w"), all_threads=False)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _follow_controller(int(os.environ["AUTOTUNE_CONTROLLER"]))
    write_note(folder / f"rank{rank}.pid", str(os.getpid()))


def classify(error: BaseException, own: Callable[[Frame], bool] | None = None) -> dict[str, str]:
    """Kind and reason of an exception: ``oom`` or ``crash``.

    The CPU allocator raises a plain RuntimeError, so its message has to be read.

    Args:
        error: The exception.
        own: Tells the frames that are worth naming; the last of them is, by default of all.
    """
    text = f"{type(error).__name__}: {error}".strip().rstrip(":")
    if is_out_of_memory(error):
        return {"kind": "oom", "reason": f"Out of memory: {error}"}
    if isinstance(error, SystemExit):
        return {"kind": "crash", "reason": f"The workload called exit with {error.code!r}."}
    if isinstance(error, UsageError):
        return {"kind": "crash", "reason": str(error)}
    every = list(traceback.extract_tb(error.__traceback__))
    frames = [frame for frame in every if own is None or own(frame)] or every
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return {"kind": "crash", "reason": text + where}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator of the device or the host raised it."""
    no_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return no_memory or "DefaultCPUAllocator: can't allocate memory" in str(error)


class LastWords:
    """Leaves a note for the controller when the body raises, then ends this process.

    After an exception in one rank the others may wait in a collective for ever, so the whole
    launch is given up: torchrun ends the other ranks when this one exits.
    """

    def __init__(
        self,
        rank: int,
        folder: Path,
        describe: Callable[[BaseException], Mapping[str, str]] = classify,
    ) -> None:
        self._rank = rank
        self._folder = folder
        self._describe = describe

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        if isinstance(error, UsageError):
            print(error, file=sys.stderr)  # all of it is in the message
        else:
            traceback.print_exception(error)
        note = {"at": time.time(), "rank": self._rank, **self._describe(error)}
        write_note(self._folder / f"rank{self._rank}.failure.json", json.dumps(note))
        leave(FAILED_EXIT)  # skips clean-up that could wait for the other ranks


def leave(code: int) -> None:
    """Ends this process at once, without any clean-up but that its output is written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def write_note(path: Path, text: str) -> None:
    """Atomic: the controller never reads half a note."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _follow_controller(pid: int) -> None:
    """Ends this process when the controller or torchrun is gone, even while a probe hangs."""
    parent = os.getppid()
    try:
        controller = psutil.Process(pid)
    except psutil.NoSuchProcess:
        os._exit(FAILED_EXIT)

    def watch() -> None:
        while _runs(controller) and os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(FAILED_EXIT)

    threading.Thread(target=watch, daemon=True, name="follow-controller").start()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
