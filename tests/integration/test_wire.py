"""The wire is read from what was dispatched; the profiler must have seen the same transfers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from autotune.launch import Machine
from autotune.launch.describe import worker_environment

ROOT = Path(__file__).parents[2]


def test_what_is_tapped_is_what_the_profiler_saw_gloo_transfer(
    machine: Machine, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "-m", "tests.workloads.wire_parity", str(tmp_path)),
        ],
        cwd=ROOT,
        env=worker_environment(machine, 2),
        capture_output=True,
        text=True,
        check=False,
    )
    # Ranks may abort while they exit, in a thread of gloo; what counts is that both got there.
    assert len(list(tmp_path.glob("rank*.done"))) == 2, done.stderr
