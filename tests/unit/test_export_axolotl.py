"""The fragment for axolotl and its plugin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.export import Exported, Note, export, write
from autotune.wiring.exports import unmeasured
from tests.build import make_setup

MIB = 2**20


def exported(**knobs: Any) -> Exported:
    return export(unmeasured(make_setup(**knobs), None), "axolotl")


def arguments(**knobs: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(exported(**knobs).files["axolotl.yaml"])
    return found


def notes_of(**knobs: Any) -> dict[str, Note]:
    return {note.knob: note for note in exported(**knobs).notes}


@pytest.mark.parametrize("backend", ["deepspeed", "fsdp", "ddp"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_every_switch_is_said_for_axolotl_turns_some_on_by_itself(
    backend: str, precision: str
) -> None:
    said = arguments(backend=backend, precision=precision)
    assert {name: said[name] for name in ("bf16", "fp16", "tf32")} == {
        name: name == precision for name in ("bf16", "fp16", "tf32")
    }


def test_the_policy_that_nothing_reads_is_not_written() -> None:
    for wire in ("fp32", "bf16"):
        made = exported(backend="fsdp", precision="bf16", grad_comm_dtype=wire)
        assert "mixed_precision_policy" not in made.files["axolotl.yaml"]


def test_fsdp_is_said_in_axolotls_words() -> None:
    said = arguments(backend="fsdp", zero_stage=2, activation_checkpointing=True)
    assert said["fsdp_version"] == 2
    assert said["fsdp_config"] == {
        "reshard_after_forward": False,
        "activation_checkpointing": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    }
    assert said["gradient_checkpointing"] is False
    assert arguments(backend="ddp", activation_checkpointing=True)["gradient_checkpointing"] is True


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_weights_that_axolotl_loads_are_no_float32_ones(precision: str) -> None:
    for backend in ("fsdp", "ddp"):
        noted = notes_of(backend=backend, precision=precision)
        assert noted["precision"].status == "approximated"
        assert "adapters (LoRA) stay float32" in noted["precision"].text
    assert notes_of(precision=precision)["precision"].status == "expressed", "DeepSpeed makes them"
    assert notes_of(backend="fsdp")["precision"].status == "expressed"


def test_ddp_reduces_such_weights_in_their_own_dtype_unless_a_hook_narrows_them() -> None:
    wide = notes_of(backend="ddp", precision="bf16", bucket_bytes=MIB)
    assert wide["grad_comm_dtype"].status == "cannot be expressed"
    assert wide["bucket_bytes"].status == "approximated"
    narrow = notes_of(backend="ddp", precision="bf16", grad_comm_dtype="bf16")
    assert narrow["grad_comm_dtype"].status == "expressed"
    sharded = notes_of(backend="fsdp", precision="bf16")
    assert sharded["grad_comm_dtype"].status == "expressed", "FSDP2's policy says it"


def test_the_plugin_is_named_and_installs_the_module_when_it_registers(tmp_path: Path) -> None:
    write(exported(backend="fsdp", precision="bf16"), tmp_path)
    (tmp_path / "axolotl/integrations").mkdir(parents=True)
    (tmp_path / "axolotl/integrations/base.py").write_text("class BasePlugin:\n    pass\n")
    (tmp_path / "fsdp_setup.py").write_text("def install():\n    print('installed')\n")
    (name,) = yaml.safe_load((tmp_path / "axolotl.yaml").read_text())["plugins"]
    module, plugin = name.split(".")
    line = f"import {module}; plugin = {module}.{plugin}(); print('made'); plugin.register({{}})"
    done = subprocess.run(
        [sys.executable, "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "made\ninstalled\n"


def test_without_a_need_there_is_no_plugin() -> None:
    made = exported(backend="ddp", bucket_bytes=4 * MIB)
    assert set(made.files) == {"axolotl.yaml"}
    said = yaml.safe_load(made.files["axolotl.yaml"])
    assert "plugins" not in said
    assert said["ddp_bucket_cap_mb"] == 4


def test_deepspeeds_json_is_beside_it() -> None:
    made = exported(precision="bf16", micro_batch=3)
    said = yaml.safe_load(made.files["axolotl.yaml"])
    assert (said["deepspeed"], said["micro_batch_size"]) == ("ds_config.json", 3)
    assert '"train_micro_batch_size_per_gpu": "auto"' in made.files["ds_config.json"]
