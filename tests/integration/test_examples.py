"""What is exported trains: the examples on two real gloo ranks, started by launch.sh."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.backends import backend_of
from autotune.export import export, subject_of, write
from autotune.render import render
from tests.build import make_probe, make_setup
from tests.unit.test_export import PROVENANCE

EXAMPLES = Path(__file__).parents[2] / "examples"
STEP = re.compile(r"^step=(\d+) loss=([0-9.]+)$", re.MULTILINE)
STEPS = 12


def launch(tmp_path: Path, script: Path, *words: str, **knobs: Any) -> str:
    """Exports a setup and trains with it on two ranks. Returns what they print."""
    setup = make_setup(micro_batch=8, gradient_accumulation=2, **knobs)
    backend = backend_of(setup)
    text = render(backend.template, backend.variables(setup), None)
    probe = replace(make_probe(0, setup), rendered=text)
    write(export(subject_of(probe, PROVENANCE), "launch"), tmp_path / "tuned")
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "NPROC_PER_NODE": "2",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [tmp_path / "tuned/launch.sh", script, *words],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_training(output: str) -> None:
    found = STEP.findall(output)
    assert [int(step) for step, _ in found] == list(range(STEPS))
    losses = [float(loss) for _, loss in found]
    assert losses[0] > 3.0  # a guess among 32 tokens costs 3.5
    assert losses[-1] < losses[0] / 3


@pytest.mark.parametrize(
    "knobs",
    [
        {"precision": "bf16", "grad_comm_dtype": "bf16", "zero_stage": 2},
        pytest.param(
            {"precision": "fp16", "grad_comm_dtype": "fp16", "zero_stage": 1},
            marks=pytest.mark.fp16,
        ),
    ],
    ids=["bf16-stage2", "fp16-stage1"],
)
def test_the_deepspeed_example_learns_from_the_exported_folder(
    tmp_path: Path, knobs: dict[str, Any]
) -> None:
    script = EXAMPLES / "train_deepspeed.py"
    check_training(launch(tmp_path, script, "--steps", str(STEPS), **knobs))


@pytest.mark.parametrize(
    "knobs",
    [
        {"precision": "bf16", "grad_comm_dtype": "bf16", "activation_checkpointing": True},
        {"precision": "fp16", "grad_comm_dtype": "fp32", "zero_stage": 2},
    ],
    ids=["bf16-checkpointed", "fp16-no-reshard"],
)
def test_the_fsdp_example_learns_from_the_exported_folder(
    tmp_path: Path, knobs: dict[str, Any]
) -> None:
    script = EXAMPLES / "train_fsdp.py"
    check_training(launch(tmp_path, script, "--steps", str(STEPS), backend="fsdp", **knobs))


def test_arguments_reach_every_rank_of_a_real_launch_untouched(tmp_path: Path) -> None:
    script = tmp_path / "print $(it).py"
    script.write_text(
        "import json, os, sys\n"
        "line = json.dumps([os.environ['RANK'], *sys.argv[1:]]) + '\\n'\n"
        "os.write(1, line.encode())\n"
    )
    words = ["--", "--nproc-per-node", "a b", "new\nline", "$(exit 1)", "'\"", ""]
    lines = launch(tmp_path, script, *words).splitlines()
    assert sorted(json.loads(line) for line in lines) == [["0", *words], ["1", *words]]
