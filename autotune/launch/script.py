"""The user's own training script, started anew for every probe."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from autotune.bundle import unbundle
from autotune.launch.local import Judge, Launch, LaunchFailedError, torchrun_tail
from autotune.launch.scratch import make_scratch, scratch_environment
from autotune.outcome import Outcome
from autotune.placeholders import FILES, OUTPUT, fill, knob_values, placeholders_in
from autotune.readings import Reading
from autotune.request import ProbeRequest, ReadingRequest
from autotune.setup import Setup
from autotune.workload import Script

LOG_BYTES = 2_000_000  # of one rank's output that are kept
NOTE = "redirected.json"
MOST_NAMED = 5  # files in a note
INSTALLED = ("fsdp_setup", "ddp_setup")
"""Rendered modules that the attachment installs where the script does not load them itself."""


@dataclass(frozen=True, slots=True)
class ScriptLauncher:
    """Runs a script on ``ranks`` processes.

    Attributes:
        ranks: Processes of one run.
        environment: Theirs.
        folder: Files, logs and the scratch folder of every run go below.
        script: What is run.
    """

    ranks: int
    environment: Mapping[str, str]
    folder: Path
    script: Script

    @property
    def fresh(self) -> bool:
        """Every probe is a run of the script from its start."""
        return True

    def start(self, number: int, *, alone: bool = False) -> ScriptLaunch:
        """A row of runs; nothing is started before the first probe asks for it.

        Args:
            number: Of the launch; its files go to a folder of this number.
            alone: One rank in place of all.
        """
        folder = self.folder / f"{number:03d}"
        launcher = replace(self, ranks=1) if alone else self
        return ScriptLaunch(launcher, folder)

    def clock(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()


class ScriptLaunch:
    """Serves each probe with a run of the script."""

    def __init__(self, launcher: ScriptLauncher, folder: Path) -> None:
        self.alive = True
        self.others_busy: float | None = None
        self._launcher = launcher
        self._folder = folder
        self._running: Launch | None = None

    def probe(
        self, request: ProbeRequest, deadline_seconds: float, judge: Judge | None = None
    ) -> Outcome:
        """Runs the script until it has been measured; what goes wrong costs this run alone."""
        folder = _next_folder(self._folder)
        run = Run(self._launcher, request, folder)
        linked = run.prepare()
        try:
            self._running = run.start()
            outcome = self._running.probe(request, deadline_seconds, judge)
            self.others_busy = self._running.others_busy
            self._running.stop()
        except LaunchFailedError as error:
            outcome = Outcome(kind="crash", reason=str(error))
        finally:
            self._running = None
            run.tidy()
        return replace(outcome, notes=tuple(file_notes(folder, linked)))

    def read(self, request: ReadingRequest, deadline_seconds: float) -> Reading | Outcome:
        """No reading can be taken from somebody else's training loop."""
        return Outcome(kind="invalid", reason=f"a script gives no reading of {request.ask}")

    def stop(self) -> None:
        """Nothing waits between the runs."""
        self.alive = False

    def kill(self) -> None:
        """Ends the run that goes on, if one does."""
        self.alive = False
        if self._running is not None:
            self._running.kill()


def _next_folder(parent: Path) -> Path:
    """A folder for the next run; an interrupted session may have left some."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1 + max(
        (int(path.name) for path in parent.iterdir() if path.name.isdigit()), default=-1
    )
    folder = parent / f"{number:03d}"
    folder.mkdir()
    return folder.resolve()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the script.

    Attributes:
        launcher: How it is started.
        request: The setup and what is measured.
        folder: For its files, logs and scratch folder.
    """

    launcher: ScriptLauncher
    request: ProbeRequest
    folder: Path

    @property
    def scratch(self) -> Path:
        """Where the script runs, in place of the user's own folder."""
        return self.folder / "scratch"

    @property
    def files(self) -> dict[str, Path]:
        """Rendered files by their placeholder."""
        names = {name: placeholder for placeholder, name in FILES.items()}
        return {
            names[name]: self.folder / name
            for name in unbundle(self.request.rendered)
            if name in names
        }

    def prepare(self) -> Sequence[str]:
        """Writes the rendered files, the scratch folder and the attachment's orders.

        Returns:
            The folders that the scratch folder does not mirror.
        """
        for name, text in unbundle(self.request.rendered).items():
            (self.folder / name).write_text(text, encoding="utf-8")
        scratch = make_scratch(Path(self.launcher.script.folder), self.scratch)
        (self.scratch / OUTPUT).mkdir(exist_ok=True)
        named = placeholders_in(self.launcher.script.command)
        orders = {
            "request": asdict(self.request),
            "home": self.launcher.script.folder,
            "scratch": str(self.scratch),
            "install": [
                str(path)
                for name, path in self.files.items()
                if name in INSTALLED and name not in named
            ],
            "seed": self.request.workload.seed,
            "losses": True,
        }
        (self.folder / "attach.json").write_text(json.dumps(orders), encoding="utf-8")
        return scratch.not_redirected

    def start(self) -> Launch:
        """Starts the processes.

        Raises:
            LaunchFailedError: They ended before the script began.
        """
        environment = {
            **self.launcher.environment,
            **scratch_environment(self.scratch),
            **precision_environment(self.request.setup),
            "PET_REDIRECTS": "3",  # torchrun's own, for accelerate has no such flag
            "AUTOTUNE_ATTACH": str(self.folder / "attach.json"),
        }
        return Launch([self.command()], environment, self.folder, self.scratch)

    def command(self) -> tuple[str, ...]:
        """The command line that starts the script on all ranks."""
        files = {name: str(path) for name, path in self.files.items()}
        return command_line(
            self.launcher.script,
            self.request.setup,
            files={**files, OUTPUT: str(self.scratch / OUTPUT)},
            ranks=self.launcher.ranks,
            folder=self.folder,
        )

    def tidy(self) -> None:
        """Removes what the script wrote; of its output the end is kept."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        for log in self.folder.rglob("*.log"):
            _keep_end(log)


def file_notes(folder: Path, linked: Sequence[str]) -> Iterator[str]:
    """What became of the files that a script wrote.

    Args:
        folder: Of the run, in which the attachment left word.
        linked: Folders that were not mirrored.
    """
    note = folder / NOTE
    told = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    redirected, outside = told.get("redirected", ()), told.get("outside", ())
    if redirected:
        yield f"The script's files went to a scratch folder and were removed: {_list(redirected)}."
    if outside:
        yield f"The script wrote outside of it, which is not redirected: {_list(outside)}."
    if linked:
        yield f"Too large to mirror, so that the script may not write there: {_list(linked)}."


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def precision_environment(setup: Setup) -> dict[str, str]:
    """Whether fp32 products run in TF32, which a configuration file cannot say."""
    return {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": str(int(setup.precision == "tf32"))}


def command_line(
    script: Script, setup: Setup, *, files: Mapping[str, str], ranks: int, folder: Path
) -> tuple[str, ...]:
    """What starts the script on all ranks, with the placeholders filled and the attachment in.

    Args:
        script: The script.
        setup: The setup whose values go into the placeholders.
        files: Paths for the placeholders that stand for one.
        ranks: Processes.
        folder: For the logs.
    """
    worker = ("attach", "--", *fill(script.command, {**knob_values(setup), **files}))
    if script.launcher == "accelerate":
        logs = ("--log_dir", str(folder / "ranks"))
        return (*accelerate(files, ranks), *logs, "--module", "autotune.probe", *worker)
    return (*torchrun(ranks), *torchrun_tail(folder, *worker))


def plain_command(script: Script, setup: Setup, ranks: int) -> str:
    """The command line of a setup for people: without the attachment, files by their names."""
    words = fill(script.command, {**knob_values(setup), **FILES, OUTPUT: OUTPUT})
    start = accelerate(FILES, ranks) if script.launcher == "accelerate" else torchrun(ranks)
    return shlex.join(("python", *start[1:], *words))


def torchrun(ranks: int) -> Sequence[str]:
    """Torchrun on one node."""
    start = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    return (*start, "--nproc-per-node", str(ranks))


def accelerate(files: Mapping[str, str], ranks: int) -> Sequence[str]:
    """On the command line stands what its file cannot know: topology, and another file's place."""
    deepspeed = files.get("deepspeed_config")
    return (
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--config_file", files["accelerate_config"]),
        *(() if deepspeed is None else ("--deepspeed_config_file", deepspeed)),
        *("--num_processes", str(ranks), "--num_machines", "1", "--machine_rank", "0"),
        *("--main_process_port", str(_free_port())),
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _keep_end(log: Path) -> None:
    """Cuts the beginning of a log off that has grown too large."""
    size = log.stat().st_size
    if size <= LOG_BYTES:
        return
    with log.open("rb") as file:
        file.seek(-LOG_BYTES, os.SEEK_END)
        end = file.read()
    log.write_bytes(f"[{size - LOG_BYTES:,} bytes before this were cut off]\n".encode() + end)
