"""The loop of one rank in a warm launch."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import torch
import torch.distributed as dist

from autotune.errors import UsageError
from autotune.outcome import Outcome
from autotune.probe.control import Control
from autotune.probe.gradient import Shelf
from autotune.probe.line import ControllerGoneError, Line, connect
from autotune.probe.measure import run_probe
from autotune.probe.read import read
from autotune.probe.workload import Rank
from autotune.readings import Reading
from autotune.request import Measure, ProbeRequest, ReadingRequest
from autotune.setup import Setup
from autotune.workload import Gpt, PythonFactory, Workload

WATCH_SECONDS = 0.5
FAILED_EXIT = 17  # so that a worker's own failure is told from a signal in torchrun's report


def serve() -> None:
    """Joins the launch, then answers every request of the controller, until it says stop."""
    folder = Path(os.environ["AUTOTUNE_LAUNCH_FOLDER"])
    rank = int(os.environ["RANK"])
    # A fatal signal leaves its stack there; the file stays open to the very end.
    faulthandler.enable((folder / f"rank{rank}.fatal").open("w"), all_threads=False)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _follow_controller(int(os.environ["AUTOTUNE_CONTROLLER"]))
    _write(folder / f"rank{rank}.pid", str(os.getpid()))
    with LastWords(rank, folder):
        place = _join()
        control = Control()
        line = Line(control, connect() if rank == 0 else None)
        gc.freeze()  # what the imports made stays; collections after each probe skip it
        line.send({"ready": True})
        with contextlib.suppress(ControllerGoneError):
            _answer_requests(place, control, line)
    dist.destroy_process_group()


def _answer_requests(place: Rank, control: Control, line: Line) -> None:
    shelf = Shelf()
    while not (message := line.next()).get("stop"):
        request = parse_request(message)
        found: Outcome | Reading
        if isinstance(request, ReadingRequest):
            found = read(request, place, control, line, shelf)
        else:
            found = run_probe(request, place, control, line)
        control.barrier()
        line.send({"outcome" if isinstance(found, Outcome) else "reading": asdict(found)})


def _join() -> Rank:
    """Joins the process group that torchrun describes in the environment."""
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl")
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return Rank(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device)


class LastWords:
    """Leaves a note for the controller when the body raises, then ends this process.

    After an exception in one rank the others may wait in a collective for ever, so the whole
    launch is given up: torchrun ends the other ranks when this one exits.
    """

    def __init__(self, rank: int, folder: Path) -> None:
        self._rank = rank
        self._folder = folder

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
        traceback.print_exception(error)
        note = {"at": time.time(), "rank": self._rank, **classify(error)}
        _write(self._folder / f"rank{self._rank}.failure.json", json.dumps(note))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(FAILED_EXIT)  # skips clean-up that could wait for the other ranks


def classify(error: BaseException) -> dict[str, str]:
    """Kind and reason of an exception: ``oom`` or ``crash``.

    The CPU allocator raises a plain RuntimeError, so its message has to be read.
    """
    text = f"{type(error).__name__}: {error}".strip().rstrip(":")
    no_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if no_memory or "DefaultCPUAllocator: can't allocate memory" in text:
        return {"kind": "oom", "reason": f"Out of memory: {error}"}
    if isinstance(error, SystemExit):
        return {"kind": "crash", "reason": f"The workload called exit with {error.code!r}."}
    if isinstance(error, UsageError):
        return {"kind": "crash", "reason": str(error)}
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return {"kind": "crash", "reason": text + where}


def _write(path: Path, text: str) -> None:
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


def parse_request(message: Mapping[str, Any]) -> ProbeRequest | ReadingRequest:
    """The request out of its JSON form."""
    work = dict(message["workload"])
    model = dict(work.pop("model"))
    parsed = PythonFactory(**model) if "path" in model else Gpt(**model)
    both = {
        "setup": Setup.from_dict(message["setup"]),
        "rendered": message["rendered"],
        "workload": Workload(model=parsed, **work),
    }
    if "measure" in message:
        return ProbeRequest(measure=Measure(**message["measure"]), **both)
    own = {name: message[name] for name in ("ask", "steps", "learning_rate")}
    return ReadingRequest(**own, **both)
