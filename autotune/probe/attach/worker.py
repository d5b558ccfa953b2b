"""One rank of a script under measurement."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from autotune.errors import UsageError
from autotune.outcome import Outcome
from autotune.probe import memory
from autotune.probe.attach import engine
from autotune.probe.attach.ending import describe, ended_early, exit_code, in_folders
from autotune.probe.attach.guard import Guard
from autotune.probe.attach.hooks import TorchHooks
from autotune.probe.attach.imports import AfterImport
from autotune.probe.attach.launchers import LauncherWatch
from autotune.probe.attach.orders import Orders, read_orders
from autotune.probe.attach.places import find_places
from autotune.probe.attach.script import install_modules, run_script, seed_everything
from autotune.probe.attach.training import Session, Training
from autotune.probe.attach.windows import Tools
from autotune.probe.control import Alone, Control
from autotune.probe.finding import Finding
from autotune.probe.line import Line, connect
from autotune.probe.pace import Clock, Stopwatch
from autotune.probe.process import LastWords, enroll, leave
from autotune.probe.workload import Rank


def attach(words: Sequence[str]) -> None:
    """Runs a script and measures it; ends the process.

    Args:
        words: The script and its arguments, or ``-m``, a module and its arguments; perhaps after
            ``--``.
    """
    folder = Path(os.environ["AUTOTUNE_LAUNCH_FOLDER"])
    rank = int(os.environ.get("RANK", "0"))
    enroll(folder, rank)
    with LastWords(rank, folder):
        orders = read_orders(Path(os.environ["AUTOTUNE_ATTACH"]))
    run = _Run(orders, folder, rank)
    with run.last_words:
        run.greet()
        run.prepare()
        run.until_measured(list(words[words[:1] == ["--"] :]))
    _end_children()
    leave(0)


class _Run:
    """One run of the script."""

    def __init__(self, orders: Orders, folder: Path, rank: int) -> None:
        self.last_words = LastWords(rank, folder, self._describe)
        self._orders = orders
        self._started = time.perf_counter()
        self._line = Line(Alone(), connect() if rank == 0 else None)
        self._own = in_folders(orders.home, orders.scratch)
        self._guard = Guard(find_places(orders.home, orders.scratch, folder), folder)
        self._launchers = LauncherWatch()
        self._training = Training(self._begin, self.last_words, losses=orders.losses)

    def greet(self) -> None:
        """Says that the rank is there, and hears of the request, which the orders hold, too."""
        self._line.send({"ready": True})
        if self._line.connection is not None:
            self._line.next()

    def prepare(self) -> None:
        """Puts the hooks in place, and does what the rendered modules ask for."""
        memory.reset_peak(torch.device("cpu"))
        hooks = TorchHooks(self._training)
        hooks.install()
        self._guard.protect_torch_save(torch)
        self._launchers.refuse_spawning()
        changes = {
            engine.MODULE: engine.EngineHooks(hooks).install,
            "safetensors.torch": self._guard.protect_save_file,
        }
        AfterImport(changes).install()
        handlers = {
            event: item.audit for item in (self._guard, self._launchers) for event in item.events
        }

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            if event in handlers:
                handlers[event](event, arguments)

        sys.addaudithook(audit)
        install_modules(self._orders.install)
        seed_everything(self._orders.seed)

    def until_measured(self, words: list[str]) -> None:
        """Runs the script.

        Raises:
            UsageError: It ended before it was measured.
        """
        self._line.announce("import")
        code = 0
        try:
            run_script(words, self._orders.home, self._orders.scratch)
        except SystemExit as end:
            code = exit_code(end)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            if not self._training.finished:
                raise
        if not self._training.finished:
            raise UsageError(self._why(code))
        self._save_note()

    def _describe(self, error: BaseException) -> Mapping[str, str]:
        self._save_note()
        return describe(error, self._own)

    def _save_note(self) -> None:
        if self._line.connection is not None:  # one rank speaks for all
            self._guard.save()

    def _why(self, code: int) -> str:
        """Why there is no measurement."""
        why = ended_early(
            self._training,
            self._orders.request.measure,
            code,
            launcher=self._launchers.seen,
            own=self._own,
        )
        return f"{why} {self._guard.refused}" if self._guard.refused else why

    def _begin(self) -> Session:
        """Begins to measure, at the first backward pass, when the ranks know each other."""
        # Imports DTensor, which a script may never need to reach this point.
        from autotune.probe.attach.course import Course
        from autotune.probe.wire import WireTap

        control = join_ranks(int(os.environ.get("WORLD_SIZE", "1")))
        place = Rank(rank=control.rank, world_size=control.world_size, device=_device())
        line = Line(control, self._line.connection)
        watch = Stopwatch(line.announce)
        watch.seconds["import"] = time.perf_counter() - self._started
        request, tap = self._orders.request, WireTap()
        course = Course(request, place, line, tap, watch, losses=self._orders.losses)

        def send(outcome: Outcome) -> None:
            control.barrier()
            line.send({"outcome": asdict(outcome)})

        return Session(
            tools=Tools(
                control=control,
                now=Clock(place.device).now,
                tap=tap,
                backwards=request.setup.gradient_accumulation,
            ),
            course=course.run(),
            refuse=lambda reason: course.outcome(Finding(refused=reason)),
            send=send,
        )


def join_ranks(ranks: int) -> Control:
    """The side channel between the ranks of the script.

    Raises:
        UsageError: They have not joined each other.
    """
    joined = dist.is_available() and dist.is_initialized()
    size = dist.get_world_size() if joined else 1
    if size != ranks:
        raise UsageError(
            f"The script reached its first backward on {ranks} ranks, but they train in groups of "
            f"{size}; let it call torch.distributed.init_process_group, or what does it "
            "(Accelerator, deepspeed.initialize), on all ranks."
        )
    return Control() if joined else Alone()


def _device() -> torch.device:
    """Where the script trains; asking must not start CUDA."""
    if torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _end_children() -> None:
    """Ends what the script has started and, because it was ended, could not end itself."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
