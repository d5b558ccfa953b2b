"""launch.sh with the real launchers, on two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recorder import HOSTILE, exported

SCRIPT = """\
import json, os, sys
from pathlib import Path

names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "AUTOTUNE_FOLDER", "ACCELERATE_MIXED_PRECISION")
said = {name: os.environ.get(name) for name in names}
Path(f"rank{os.environ['RANK']}.json").write_text(json.dumps([sys.argv[1:], said]))
sys.exit(3 if "fail" in sys.argv else 0)
"""


def launched(folder: Path, backend: str, launcher: str, *arguments: str) -> int:
    launch = exported(folder / "tuned it's", backend=backend, precision="bf16")
    (folder / "train it.py").write_text(SCRIPT, encoding="utf-8")
    environment = {"NPROC_PER_NODE": "2", "LAUNCHER": launcher, "PYTHON": sys.executable}
    done = subprocess.run(
        [launch, "train it.py", *arguments],
        cwd=folder,
        env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    print(done.stdout, done.stderr)
    return done.returncode


@pytest.mark.parametrize(
    ("backend", "launcher", "precision"),
    [
        ("fsdp", "torchrun", None),
        ("fsdp", "accelerate", "bf16"),
        ("deepspeed", "accelerate", "no"),  # the JSON says it
        ("deepspeed", "deepspeed", None),
    ],
)
def test_every_rank_gets_the_arguments_untouched(
    tmp_path: Path, backend: str, launcher: str, precision: str | None
) -> None:
    arguments = ["first", *HOSTILE]
    assert launched(tmp_path, backend, launcher, *arguments) == 0
    for rank in range(2):
        words, said = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert words == arguments
        assert (said["RANK"], said["WORLD_SIZE"]) == (str(rank), "2")
        assert said["AUTOTUNE_FOLDER"] == str(tmp_path / "tuned it's")
        assert said["ACCELERATE_MIXED_PRECISION"] == precision
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_a_script_that_fails_is_seen_in_the_exit_code(tmp_path: Path, launcher: str) -> None:
    assert launched(tmp_path, "fsdp", launcher, "fail") == 1
    assert (tmp_path / "rank0.json").exists()
