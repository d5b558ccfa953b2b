"""The example scripts as people start them, without autotune: each trains on two gloo ranks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"
STEP = re.compile(r"^step=(\d+) loss=([0-9.]+)$", re.MULTILINE)
STEPS = 3
SAMPLES = 4096  # of an epoch, in the scripts that have epochs
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 3},
}
ACCELERATE: dict[str, dict[str, Any]] = {
    "deepspeed": {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": "ds.json", "zero3_init_flag": False},
    },
    "fsdp2": {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": "Block",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
    },
    "ddp": {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"},
}
slow = [pytest.mark.slow, pytest.mark.timeout(500)]  # DeepSpeed may have to compile


def accelerate(folder: Path, kind: str) -> tuple[str, ...]:
    """Words that start accelerate, with a configuration file of this kind."""
    settings = ACCELERATE[kind] | {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": 1,
        "num_processes": 2,
        "main_process_port": 0,
    }
    path = folder / "accelerate.yaml"
    path.write_text(yaml.safe_dump(settings))
    return ("accelerate.commands.launch", "--config_file", str(path))


def run(folder: Path, start: tuple[str, ...], script: str, *words: str) -> str:
    """Runs a script in the folder. Returns what it prints."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, "-m", *start, EXAMPLES / script, *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=490,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(folder: Path, output: str, *files: str) -> None:
    """Every step was logged, on the screen and in the file; the loss falls; this was saved."""
    found = STEP.findall(output)
    assert [int(step) for step, _ in found] == list(range(STEPS))
    assert STEP.findall((folder / "checkpoints/train.log").read_text()) == found
    losses = [float(loss) for _, loss in found]
    assert losses[0] > 3.0  # a guess among 32 tokens costs 3.5
    assert losses[-1] < losses[0] - 0.2
    for name in files:
        assert list((folder / "checkpoints").glob(name)), name


@pytest.mark.parametrize(
    "precision", ["fp16", *(pytest.param(name, marks=slow) for name in ("fp32", "bf16"))]
)
def test_the_ddp_script_trains(tmp_path: Path, precision: str) -> None:
    output = run(
        tmp_path, TORCHRUN, "train_ddp.py", "--steps", str(STEPS), "--precision", precision
    )
    check(tmp_path, output, "checkpoint.pt")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_fsdp2_script_trains(tmp_path: Path, precision: str) -> None:
    output = run(
        tmp_path, TORCHRUN, "train_fsdp2.py", "--steps", str(STEPS), "--precision", precision
    )
    check(tmp_path, output, "checkpoint.pt")


@pytest.mark.parametrize(
    ("kind", "saved"),
    [
        ("fsdp2", "pytorch_model_fsdp_0/__1_0.distcp"),
        pytest.param("deepspeed", "pytorch_model/*rank_1*optim_states.pt", marks=slow),
        pytest.param("ddp", "random_states_1.pkl", marks=slow),
    ],
)
def test_the_accelerate_script_trains_on_both_ranks(tmp_path: Path, kind: str, saved: str) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    start = accelerate(tmp_path, kind)
    output = run(tmp_path, start, "train_accelerate.py", "--steps", str(STEPS))
    # Ranks that do not know each other would both save as the first one.
    check(tmp_path, output, saved)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_deepspeed_script_saves_a_checkpoint_of_both_ranks(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    words = ("--steps", str(STEPS), "--deepspeed_config", "ds.json")
    output = run(tmp_path, TORCHRUN, "train_deepspeed.py", *words)
    check(tmp_path, output, "latest", f"global_step{STEPS}/*rank_1*optim_states.pt")


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("kind", ["deepspeed", "fsdp2"])
def test_the_hugging_face_script_trains_on_both_ranks(tmp_path: Path, kind: str) -> None:
    words = ["--bf16", "true", "--fp16", "false", "--max_steps", "6", "--learning_rate", "2e-3"]
    if kind == "deepspeed":
        start: tuple[str, ...] = TORCHRUN
        words += ["--deepspeed", str(EXAMPLES / "ds_config_hf.json")]
    else:
        start = accelerate(tmp_path, kind)
        text = (tmp_path / "accelerate.yaml").read_text()  # the model names its layers itself
        text = text.replace("  fsdp_transformer_layer_cls_to_wrap: Block\n", "")
        (tmp_path / "accelerate.yaml").write_text(text)
    batch = ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2"]
    run(tmp_path, start, "train_hf.py", *words, *batch)
    folder = tmp_path / "checkpoints"
    logged = [json.loads(line) for line in (folder / "train.log").read_text().splitlines()]
    steps = [line for line in logged if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.2
    assert steps[-1]["epoch"] == pytest.approx(6 * 4 * 2 * 2 / SAMPLES)  # two ranks share it
    assert (folder / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "saved"),
    [("ddp", "checkpoint.ckpt"), ("fsdp2", "checkpoint.ckpt/__1_0.distcp")],
)
def test_the_lightning_script_trains(tmp_path: Path, strategy: str, saved: str) -> None:
    words = ("--steps", str(STEPS), "--strategy", strategy, "--precision", "bf16")
    output = run(tmp_path, TORCHRUN, "train_lightning.py", *words)
    check(tmp_path, output, saved)
