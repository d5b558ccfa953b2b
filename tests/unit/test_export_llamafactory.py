"""The fragment for LLaMA-Factory, and the script that installs the module first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.export import Exported, export, write
from autotune.wiring.exports import unmeasured
from tests.build import make_setup

STUB = "import ddp_setup, sys\ndef run_exp():\n    print(*ddp_setup.calls, *sys.argv[1:])\n"


def exported(**knobs: Any) -> Exported:
    return export(unmeasured(make_setup(**knobs), None), "llamafactory")


def arguments(**knobs: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(exported(**knobs).files["llamafactory.yaml"])
    return found


@pytest.mark.parametrize("backend", ["deepspeed", "fsdp", "ddp"])
def test_activations_are_recomputed_once_or_not_at_all(backend: str) -> None:
    name = "disable_gradient_checkpointing"
    assert arguments(backend=backend)[name] is True, "its default is to recompute"
    made = exported(backend=backend, activation_checkpointing=True)
    said = yaml.safe_load(made.files["llamafactory.yaml"])
    by_fsdp = backend == "fsdp"
    assert said[name] is by_fsdp
    assert "gradient_checkpointing" not in said
    if by_fsdp:
        launcher = yaml.safe_load(made.files["accelerate.yaml"])
        assert launcher["fsdp_config"]["fsdp_activation_checkpointing"] is True


def test_only_fsdp_needs_the_launchers_file() -> None:
    assert set(exported(backend="fsdp").files) == {"llamafactory.yaml", "accelerate.yaml"}
    assert set(exported(backend="ddp", bucket_bytes=2**20).files) == {"llamafactory.yaml"}
    deepspeed = exported(precision="bf16")
    assert yaml.safe_load(deepspeed.files["llamafactory.yaml"])["deepspeed"] == "ds_config.json"
    assert '"gradient_clipping": "auto"' in deepspeed.files["ds_config.json"]
    assert "accelerate.yaml" not in deepspeed.files


@pytest.mark.parametrize(
    ("knobs", "command"),
    [
        ({}, "FORCE_TORCHRUN=1 llamafactory-cli train llamafactory.yaml"),
        (
            {"backend": "fsdp"},
            "accelerate launch --config_file accelerate.yaml -m llamafactory.launcher "
            "llamafactory.yaml",
        ),
        (
            {"backend": "fsdp", "grad_comm_dtype": "bf16"},
            "accelerate launch --config_file accelerate.yaml llamafactory_train.py "
            "llamafactory.yaml",
        ),
        (
            {"backend": "ddp", "grad_comm_dtype": "bf16"},
            "torchrun --nproc-per-node gpu llamafactory_train.py llamafactory.yaml",
        ),
    ],
)
def test_the_command_that_starts_it_is_told(knobs: dict[str, Any], command: str) -> None:
    made = exported(**knobs)
    assert f"#   {command}\n" in made.files["llamafactory.yaml"]
    if "llamafactory_train.py" in command:
        notes = {note.knob: note for note in made.notes}
        assert f"`{command}`" in notes["grad_comm_dtype"].text
    else:
        assert "llamafactory_train.py" not in made.files


def test_the_script_installs_the_module_and_then_trains(tmp_path: Path) -> None:
    write(exported(backend="ddp", grad_comm_dtype="bf16"), tmp_path)
    (tmp_path / "llamafactory/train").mkdir(parents=True)
    (tmp_path / "llamafactory/train/tuner.py").write_text(STUB)
    (tmp_path / "ddp_setup.py").write_text(
        "calls = []\ndef install():\n    calls.append('installed')\n"
    )
    command = [sys.executable, f"{tmp_path}/llamafactory_train.py", "llamafactory.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "installed llamafactory.yaml\n"
