"""The file for TRL, the launcher's beside it, and the script that installs the module first."""

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

STUB = """import sys
from fsdp_setup import calls
if __name__ == "__main__":
    print(*calls, "trained", *sys.argv[1:])
"""


def exported(**knobs: Any) -> Exported:
    return export(unmeasured(make_setup(**knobs), None), "trl")


def arguments(**knobs: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(exported(**knobs).files["trl.yaml"])
    return found


@pytest.mark.parametrize("backend", ["deepspeed", "fsdp", "ddp"])
def test_trls_own_defaults_are_never_left_to_it(backend: str) -> None:
    off = arguments(backend=backend)
    assert off["bf16"] is False
    assert off["gradient_checkpointing"] is False
    assert off["dtype"] == "float32"
    assert arguments(backend=backend, precision="bf16")["bf16"] is True


def test_activations_are_recomputed_by_the_trainer_or_by_fsdp_alone() -> None:
    for backend in ("deepspeed", "ddp"):
        assert arguments(backend=backend, activation_checkpointing=True)["gradient_checkpointing"]
    sharded = exported(backend="fsdp", activation_checkpointing=True).files
    assert yaml.safe_load(sharded["trl.yaml"])["gradient_checkpointing"] is False
    launcher = yaml.safe_load(sharded["accelerate.yaml"])
    assert launcher["fsdp_config"]["fsdp_activation_checkpointing"] is True


def test_the_launchers_file_lies_beside_it_and_says_what_trl_can_say_in_its_head() -> None:
    made = exported(backend="fsdp", precision="bf16", grad_comm_dtype="bf16")
    assert set(made.files) == {"trl.yaml", "accelerate.yaml"}
    assert yaml.safe_load(made.files["trl.yaml"])["accelerate_config"] == "accelerate.yaml"
    assert {note.status for note in made.notes} == {"expressed"}
    assert "approximated" not in made.files["accelerate.yaml"]


def test_deepspeeds_json_is_named_by_the_launcher_and_leaves_the_batch_to_the_trainer() -> None:
    files = exported(precision="bf16").files
    launcher = yaml.safe_load(files["accelerate.yaml"])
    assert launcher["deepspeed_config"]["deepspeed_config_file"] == "ds_config.json"
    assert '"train_micro_batch_size_per_gpu": "auto"' in files["ds_config.json"]
    assert "deepspeed" not in yaml.safe_load(files["trl.yaml"])


def test_the_script_installs_the_module_and_then_is_trls_own(tmp_path: Path) -> None:
    made = exported(backend="fsdp", precision="bf16")
    write(made, tmp_path)
    (tmp_path / "trl/scripts").mkdir(parents=True)
    (tmp_path / "trl/scripts/sft.py").write_text(STUB)
    (tmp_path / "fsdp_setup.py").write_text(
        "calls = []\ndef install():\n    calls.append('installed')\n"
    )
    command = [sys.executable, f"{tmp_path}/trl_sft.py", "--config", "trl.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "installed trained --config trl.yaml\n"


def test_the_command_that_starts_it_is_told() -> None:
    plain = exported(backend="ddp", bucket_bytes=2**20).files
    assert "#   trl sft --config trl.yaml\n" in plain["trl.yaml"]
    made = exported(backend="ddp", grad_comm_dtype="bf16")
    command = "accelerate launch --config_file accelerate.yaml trl_sft.py --config trl.yaml"
    assert f"#   {command}\n" in made.files["trl.yaml"]
    notes = {note.knob: note for note in made.notes}
    assert f"`{command}`" in notes["grad_comm_dtype"].text
