"""A Slurm of two nodes on this machine, for a test, in a folder of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
KILL_WAIT = 5
"""Seconds between Slurm's SIGTERM and its SIGKILL."""
CONFIGURATION = """\
ClusterName=autotune
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
KillWait={kill_wait}
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName={host}-two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=main Nodes={host},{host}-two Default=YES MaxTime=INFINITE State=UP
"""


def available() -> bool:
    """Whether Slurm is here, after an attempt to install it where we may."""
    if _found():
        return True
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # starts no daemons
    for command in (["update"], ["install", "-y", "--no-install-recommends", "slurm-wlm", "munge"]):
        subprocess.run(
            ["apt-get", "--quiet", *command],
            env={**os.environ, **quiet},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=240,
        )
    return _found()


def _found() -> bool:
    return all(shutil.which(program, path=SEARCHED) for program in PROGRAMS)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Waits for it; whether it came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


@dataclass
class Cluster:
    """Daemons of Slurm, each in a process group of its own.

    Attributes:
        folder: Configuration, state and logs; its path has to be short, for sockets.
    """

    folder: Path
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What the commands of Slurm need."""
        return {"PATH": SEARCHED, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Starts it and waits until both nodes are idle."""
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o600)
        (self.folder / "state").mkdir()
        host = socket.gethostname().split(".")[0]
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                folder=self.folder, host=host, ports=_free_ports(3), kill_wait=KILL_WAIT
            )
        )
        own = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
        places = [f"--{option}={self.folder}/munge.{name}" for option, name in own.items()]
        # It mistrusts folders below a temporary one; the key is made for this test alone.
        self._daemon("munged", "--foreground", "--force", "--num-threads=1", *places)
        assert until((self.folder / "munge.socket").exists), self.logs()
        self._daemon("slurmctld", "-D", "-c")
        for node in (host, f"{host}-two"):
            self._daemon("slurmd", "-D", "-N", node)
        assert until(lambda: self.ask("sinfo", "-h", "-o", "%T %D") == "idle 2"), self.logs()

    def _daemon(self, *command: str) -> None:
        with (self.folder / f"{command[0]}{len(self.daemons)}.out").open("wb") as log:
            started = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.daemons.append(started)

    def ask(self, *command: str) -> str:
        """What a command of Slurm prints; empty if it fails."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        return done.stdout.strip() if done.returncode == 0 else ""

    def submit(self, words: Sequence[str | Path], folder: Path, **environment: str) -> str:
        """Submits a job from a folder; its number."""
        done = subprocess.run(
            ["sbatch", "--parsable", "--output=job.log", *words],
            cwd=folder,
            env={**os.environ, **self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ended(self, job: str, seconds: float = 90.0) -> tuple[str, int]:
        """Waits for a job; its state and exit code."""
        assert until(lambda: self._state(job)[0] not in ("PENDING", "RUNNING"), seconds), job
        assert until(lambda: self._state(job)[0] != "COMPLETING", seconds), job
        state, code = self._state(job)
        return state, int(code.split(":")[0])

    def _state(self, job: str) -> tuple[str, str]:
        told = self.ask("scontrol", "--oneliner", "show", "job", job)
        words = dict(word.split("=", 1) for word in told.split() if "=" in word)
        return words.get("JobState", "PENDING"), words.get("ExitCode", "0:0")

    def logs(self) -> str:
        """All that the daemons said."""
        paths = sorted([*self.folder.glob("*.out"), *self.folder.glob("*.log")])
        return "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in paths)

    def stop(self) -> None:
        """Cancels all jobs, then ends the daemons."""
        if (self.folder / "slurm.conf").exists():
            self.ask("scancel", "--user=root")
            until(lambda: not self.ask("squeue", "-h"), KILL_WAIT + 10)
        for daemon in reversed(self.daemons):
            _end(daemon)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if daemon.poll() is None:
            os.killpg(daemon.pid, number)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                continue


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [int(item.getsockname()[1]) for item in sockets]
    for item in sockets:
        item.close()
    return ports
