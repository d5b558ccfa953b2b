"""The exported flags train the example of the Trainer, unchanged, on two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.export import export, write
from autotune.wiring.exports import unmeasured
from tests.build import make_setup

pytest.importorskip("transformers")
pytest.importorskip("deepspeed")

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 2
RUN = """
set -euo pipefail
source "$1/training_args.flags"
exec "$2" -m torch.distributed.run --standalone --nproc-per-node 2 "$3" \
  "${training_args[@]}" --max_steps 2 --output_dir "$1/out"
"""
WITH_MODULE = """import ddp_setup

ddp_setup.install()
import runpy, sys

sys.path.insert(0, {examples!r})
runpy.run_path({script!r}, run_name="__main__")
"""


def losses(folder: Path, script: Path) -> list[float]:
    """Of a training with the exported flags, by its own log."""
    command = ["bash", "-c", RUN, "bash", str(folder), sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": str(folder), "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (folder / "out/train.log").read_text(encoding="utf-8").splitlines()
    logged = [json.loads(line) for line in lines]
    return [line["loss"] for line in logged if "loss" in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    "knobs",
    [
        {"precision": "bf16", "zero_stage": 2, "activation_checkpointing": True},
        {"backend": "ddp", "precision": "bf16", "grad_comm_dtype": "bf16"},
    ],
    ids=["deepspeed", "ddp"],
)
def test_the_exported_flags_train_the_example(knobs: dict[str, Any], tmp_path: Path) -> None:
    write(export(unmeasured(make_setup(**knobs), None), "huggingface"), tmp_path)
    script = EXAMPLES / "train_hf.py"
    if knobs.get("backend") == "ddp":
        text = WITH_MODULE.format(examples=str(EXAMPLES), script=str(script))
        script = tmp_path / "train.py"
        script.write_text(text, encoding="utf-8")
    assert len(losses(tmp_path, script)) == STEPS
