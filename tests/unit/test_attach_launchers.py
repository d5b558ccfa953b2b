"""Scripts that start the processes of a training themselves."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch.multiprocessing

from autotune.errors import UsageError
from autotune.probe.attach.launchers import LauncherWatch, is_launcher


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc-per-node 2 train.py",
        "/opt/bin/torchrun --standalone -m package.train",
        "deepspeed --num_gpus 2 train.py --epochs 3",
        "accelerate launch train.py",
        "python3 -m torch.distributed.run train.py",
        "python -m accelerate.commands.launch train.py",
        "mpirun -n 2 python train.py",
    ],
)
def test_a_launcher_with_a_script_is_one(line: str) -> None:
    assert is_launcher(line.split())
    assert is_launcher(["sh", "-c", line])
    assert is_launcher(["/bin/bash", "-c", f"OMP_NUM_THREADS=1 exec {line}"])


@pytest.mark.parametrize(
    "line",
    [
        "",
        "deepspeed --version",
        "accelerate env",
        "python -m pip show deepspeed",
        "ninja -v -C /cache/deepspeed/torchrun",
        "git rev-parse HEAD",
        "sh -c",
        "sh -c 'unclosed",
    ],
)
def test_what_only_has_the_name_is_none(line: str) -> None:
    assert not is_launcher(line.split())


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("subprocess.Popen", ("torchrun", ["torchrun", "train.py"], None, None)),
        ("os.posix_spawn", ("/bin/torchrun", [b"torchrun", b"train.py"], {})),
        ("os.exec", ("/bin/torchrun", ["torchrun", "train.py"], None)),
        ("os.system", (b"torchrun train.py",)),
    ],
)
def test_every_way_to_start_one_is_refused(event: str, arguments: tuple[object, ...]) -> None:
    watch = LauncherWatch()
    with pytest.raises(UsageError, match=r"own launcher: torchrun train\.py; give autotune the"):
        watch.audit(event, arguments)
    assert watch.seen == "torchrun train.py"


def test_spawned_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in (sys.modules["torch.multiprocessing.spawn"], torch.multiprocessing):
        monkeypatch.setattr(owner, "start_processes", owner.start_processes)
    watch = LauncherWatch()
    watch.refuse_spawning()
    package: Any = torch.multiprocessing
    with pytest.raises(UsageError, match=r"own launcher: torch\.multiprocessing\.spawn\(print\);"):
        package.spawn(print, nprocs=2)
    assert watch.seen is not None


def test_other_programs_may_be_started() -> None:
    watch = LauncherWatch()
    watch.audit("subprocess.Popen", (sys.executable, [sys.executable, "-c", "pass"], None, None))
    assert watch.seen is None
