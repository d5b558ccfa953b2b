"""The loop of one rank in a warm launch."""

from __future__ import annotations

import contextlib
import gc
import os
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from autotune.outcome import Outcome
from autotune.probe.control import Control
from autotune.probe.gradient import Shelf
from autotune.probe.line import ControllerGoneError, Line, connect
from autotune.probe.measure import run_probe
from autotune.probe.parse import parse_request
from autotune.probe.process import LastWords, enroll
from autotune.probe.read import read
from autotune.probe.workload import Rank
from autotune.readings import Reading
from autotune.request import ReadingRequest


def serve() -> None:
    """Joins the launch, then answers every request of the controller, until it says stop."""
    folder = Path(os.environ["AUTOTUNE_LAUNCH_FOLDER"])
    rank = int(os.environ["RANK"])
    enroll(folder, rank)
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
