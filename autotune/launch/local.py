"""Workers on this machine, started by torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from autotune.errors import EnvironmentFailedError
from autotune.launch.autopsy import examine, log_tail
from autotune.launch.extensions import VARIABLE, ExtensionCache
from autotune.launch.load import OtherLoad
from autotune.launch.processes import dump_stacks, end_group
from autotune.outcome import Outcome
from autotune.readings import Exposure, GradientReading, GradientSample, Reading, ScaleTrace
from autotune.request import Ask, ProbeRequest, ReadingRequest

START_SECONDS = 300  # a cold file system can take minutes to import torch
POLL_SECONDS = 0.2
END_SECONDS = 10  # for agents that have a reason to end
REPORT_SECONDS = 60  # torchrun grants the other ranks 30 s to end before it reports
NOTES = ("*.json", "*.pid", "*.fatal")  # what workers leave in the launch's folder
OUTCOME = TypeAdapter(Outcome)
READINGS: Mapping[Ask, TypeAdapter[Any]] = {
    "gradient": TypeAdapter(GradientReading),
    "trace": TypeAdapter(ScaleTrace),
    "sample": TypeAdapter(GradientSample),
    "exposure": TypeAdapter(Exposure),
}
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Burst:
    """Steps of a probe that goes on, while the workers wait whether it should.

    Attributes:
        index: 0 after the warm-up, then counted in bursts of timed steps.
        backward_seconds: Of its steps, on the slowest rank.
    """

    index: int
    backward_seconds: tuple[float, ...]


Judge = Callable[[Burst], str | None]  # why to stop the probe, or None to go on


class LaunchFailedError(EnvironmentFailedError):
    """The workers died or hung before they could take a probe."""


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """Starts launches of ``ranks`` workers.

    Attributes:
        ranks: Workers in a launch.
        environment: Their environment.
        folder: Logs and notes of each launch go to a numbered folder below.
        commands: One torchrun command a node, without the worker's own arguments; by default
            one node, this one.
    """

    ranks: int
    environment: Mapping[str, str]
    folder: Path
    commands: Sequence[Sequence[str]] = ()

    @property
    def fresh(self) -> bool:
        """The workers are warm: they serve many probes."""
        return False

    def start(self, number: int, *, alone: bool = False) -> Launch:
        """Starts launch ``number`` and waits until it is ready.

        Args:
            number: Of the launch; its logs go to a folder of this number.
            alone: One rank, with the cores that one of many would have.

        Raises:
            LaunchFailedError: With the last lines of the log.
        """
        folder = self.folder / f"{number:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        for left in (item for kind in NOTES for item in folder.glob(kind)):
            left.unlink()
        commands = () if alone else self.commands
        command = self._command(1 if alone else self.ranks)
        serving = [(*words, *torchrun_tail(folder, "serve")) for words in (commands or (command,))]
        return Launch(serving, dict(self.environment), folder)

    def clock(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def _command(self, ranks: int) -> tuple[str, ...]:
        return (
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks)),
        )


def torchrun_tail(folder: Path, *worker: str) -> tuple[str, ...]:
    """What every torchrun command of a launch ends with.

    Args:
        folder: The launch's, for the logs of its ranks.
        worker: Arguments of the worker.
    """
    return (
        *("--max-restarts", "0", "--redirects", "3", "--log-dir", str(folder / "ranks")),
        *("-m", "autotune.probe", *worker),
    )


class Launch:
    """One group of workers, which serves many probes, or a script's one.

    Each command is that of one node. They start in ``cwd``, by default in this process's folder.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        environment: dict[str, str],
        folder: Path,
        cwd: Path | None = None,
    ) -> None:
        started = time.perf_counter()
        self._folder = folder
        self._cwd = cwd
        self._phase = "start"
        self._extensions = ExtensionCache(Path(environment[VARIABLE]))
        self._extensions.enter()
        self._socket_folder = tempfile.TemporaryDirectory(prefix="autotune-")
        key = secrets.token_bytes(32)
        address = str(Path(self._socket_folder.name) / "controller")
        self._listener = Listener(address, family="AF_UNIX", authkey=key)
        environment |= {
            "AUTOTUNE_ADDRESS": json.dumps(address),
            "AUTOTUNE_KEY": key.hex(),
            "AUTOTUNE_CONTROLLER": str(os.getpid()),
            "AUTOTUNE_LAUNCH_FOLDER": str(folder.resolve()),
        }
        self._agents = [self._spawn(command, environment) for command in commands]
        self.alive = True
        self.others_busy: float | None = None
        """Share of the machine's cores that other processes used during the last probe."""
        self._connection = self._accept()
        self.ready_seconds = time.perf_counter() - started

    def _spawn(
        self, command: Sequence[str], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self._folder / "torchrun.log").open("ab") as log:
            return subprocess.Popen(
                command,
                env=environment,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _accept(self) -> Connection[Any, Any]:
        """Waits until rank 0 has connected and said that it is ready."""
        arrived: queue.Queue[Connection[Any, Any]] = queue.Queue()
        # Listener.accept knows no time limit, so a thread waits in it.
        threading.Thread(target=self._listen, args=(arrived,), daemon=True).start()
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and not self._all_ended():
            try:
                connection = arrived.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if self._next_message(connection, deadline - time.monotonic()) is not None:
                return connection
            break
        self.kill()
        found = examine(self._folder, self._phase)
        raise LaunchFailedError(
            f"The workers did not start: {found.reason}\n{found.log}\n"
            f"The whole log is in {self._folder}. Run autotune doctor to check the machine."
        )

    def _listen(self, arrived: queue.Queue[Connection[Any, Any]]) -> None:
        try:
            arrived.put(self._listener.accept())
        except (OSError, EOFError, AuthenticationError):
            return  # the listener was closed, or a stranger knocked

    def _all_ended(self) -> bool:
        return all(agent.poll() is not None for agent in self._agents)

    def _next_message(self, connection: Connection[Any, Any], seconds: float) -> Message | None:
        """The next message, or None when the workers are gone or the time is up."""
        try:
            if not connection.poll(max(0.0, seconds)):
                return None
            message: Message = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            self.alive = False
            return None
        return message

    def probe(
        self, request: ProbeRequest, deadline_seconds: float, judge: Judge | None = None
    ) -> Outcome:
        """Runs one probe. After ``hang`` or a lost launch, `alive` is False.

        Args:
            request: What to measure.
            deadline_seconds: From now until the answer, the judge's own time included.
            judge: Asked after each burst of steps; without one, every probe goes on.
        """
        load = OtherLoad([agent.pid for agent in self._agents])
        try:
            outcome = self._converse(request, deadline_seconds, judge)
        finally:
            self.others_busy = load.share()
        assert isinstance(outcome, Outcome)
        return outcome

    def read(self, request: ReadingRequest, deadline_seconds: float) -> Reading | Outcome:
        """Takes a reading; an outcome where there is none. A lost launch shows in `alive`."""
        answer = self._converse(request, deadline_seconds, None)
        if isinstance(answer, Outcome):
            return answer
        reading: Reading = READINGS[request.ask].validate_python(answer)
        return reading

    def _converse(
        self,
        request: ProbeRequest | ReadingRequest,
        deadline_seconds: float,
        judge: Judge | None,
    ) -> Outcome | Message:
        """The workers' answer; an outcome unless a reading was asked for and could be taken."""
        deadline = time.monotonic() + deadline_seconds
        self._phase = "start"
        self._send(asdict(request))
        while message := self._next_message(self._connection, deadline - time.monotonic()):
            if "outcome" in message:
                return OUTCOME.validate_python(message["outcome"])
            if "reading" in message:
                answer: Message = message["reading"]
                return answer
            if "burst" in message:
                self._send({"prune": _reason_to_stop(message["burst"], judge)})
            else:
                self._phase = message["phase"]
        return self._lost() if not self.alive else self._hung(deadline_seconds)

    def _send(self, message: Message) -> None:
        """Sends a message; workers that are gone show when the answer is read."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(json.dumps(message).encode())

    def _lost(self) -> Outcome:
        # torchrun reports at its end, after it has ended the other ranks.
        self._wait(REPORT_SECONDS, any)
        self._wait(END_SECONDS)
        self.kill()
        return examine(self._folder, self._phase)

    def _hung(self, deadline_seconds: float) -> Outcome:
        dump_stacks(self._folder)
        self.kill()
        return Outcome(
            kind="hang",
            reason=f"No answer within {deadline_seconds:g} s; the last phase was "
            f"{self._phase!r}. The log shows where each rank waited.",
            log=log_tail(self._folder),
        )

    def _wait(self, seconds: float, enough: Callable[[Iterable[bool]], bool] = all) -> None:
        """Waits until all agents have ended, or ``any`` of them."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if enough([agent.poll() is not None for agent in self._agents]):
                return
            time.sleep(POLL_SECONDS / 4)

    def stop(self) -> None:
        """Lets the workers leave in order; ends them when they do not."""
        if self.alive:
            self._send({"stop": True})
            self._wait(END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Ends the workers now, by the ids of the processes that this launch started."""
        self.alive = False
        for agent in self._agents:
            end_group(agent)
        self._listener.close()
        if hasattr(self, "_connection"):
            self._connection.close()
        self._socket_folder.cleanup()
        self._extensions.leave()


def _reason_to_stop(burst: Message, judge: Judge | None) -> str | None:
    if judge is None:
        return None
    return judge(Burst(burst["index"], tuple(burst["backward_seconds"])))
