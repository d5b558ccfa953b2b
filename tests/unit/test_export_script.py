"""The export of a setup under which the user's own script was measured."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.bundle import bundle
from autotune.export import Exported, export, subject_of, write
from autotune.setup import Setup
from autotune.workload import Script, ScriptLauncher
from tests.build import make_probe, make_setup
from tests.recorder import Recorder, recorded, script
from tests.unit.test_export import MEASURED_JSON, MEASURED_MODULE, PROVENANCE

PRINTS = 'printf "%s\\n" "$@"\n'


def exported(
    setup: Setup,
    *command: str,
    launcher: ScriptLauncher = "torchrun",
    to: str = "launch",
    **files: str,
) -> Exported:
    texts = {name.replace("__", "."): text for name, text in files.items()}
    probe = replace(make_probe(0, setup), rendered=bundle(texts))
    script = Script(command=command, launcher=launcher)
    return export(subject_of(probe, PROVENANCE, None, script), to)


def arguments_of(found: Exported, folder: Path, *more: str) -> list[str]:
    """What train.sh hands to its launcher."""
    write(found, folder)
    (folder / "launch.sh").write_text("#!/bin/sh\n" + PRINTS)
    shown = subprocess.run(
        [str(folder / "train.sh"), *more], capture_output=True, text=True, check=True
    )
    return shown.stdout.splitlines()


def test_a_scripts_configuration_is_exported_as_it_ran() -> None:
    setup = make_setup(precision="bf16")
    found = exported(
        setup, "train.py", "{deepspeed_config}", to="deepspeed", ds_config__json=MEASURED_JSON
    )
    assert found.files["ds_config.json"] == MEASURED_JSON


def test_train_sh_starts_the_script_with_the_exported_file_and_the_setups_values(
    tmp_path: Path,
) -> None:
    setup = make_setup(precision="bf16")
    found = exported(
        setup,
        *(
            "train.py",
            "--config={deepspeed_config}",
            "--bf16",
            "{bf16}",
            "--name",
            "it's $(rm) {{x}}",
        ),
        ds_config__json=MEASURED_JSON,
    )
    folder = tmp_path / "a folder"
    assert arguments_of(found, folder, "--more", "a b") == [
        "train.py",
        f"--config={folder}/ds_config.json",
        *("--bf16", "true", "--name", "it's $(rm) {x}", "--more", "a b"),
    ]


def test_what_the_probe_installed_is_said_and_exported() -> None:
    setup = make_setup(backend="fsdp", precision="bf16", grad_comm_dtype="fp32")
    found = exported(setup, "train.py", fsdp_setup__py=MEASURED_MODULE)
    assert MEASURED_MODULE in found.files["fsdp_setup.py"]
    (note,) = [item for item in found.notes if "import fsdp_setup" in item.text]
    assert "import fsdp_setup; fsdp_setup.install()" in note.text
    assert "train.py" in note.text


def test_a_script_that_loads_the_module_itself_needs_nothing_more() -> None:
    setup = make_setup(backend="fsdp", precision="bf16")
    found = exported(setup, "train.py", "{fsdp_setup}", fsdp_setup__py=MEASURED_MODULE)
    assert not [item for item in found.notes if "import fsdp_setup" in item.text]


@pytest.mark.parametrize("nodes", [1, 2])
def test_accelerate_gets_its_file_and_the_topology_of_the_environment(
    tmp_path: Path, nodes: int
) -> None:
    found = exported(
        make_setup(precision="bf16"),
        *("train.py", "--lr", "1e-4"),
        launcher="accelerate",
        ds_config__json=MEASURED_JSON,
        accelerate__yaml="distributed_type: DEEPSPEED\n",
    )
    assert found.files["accelerate.yaml"].endswith("\ndistributed_type: DEEPSPEED\n")
    write(found, tmp_path)
    script(tmp_path, "train.py")
    topology = {"NPROC_PER_NODE": "4", "NNODES": str(nodes), "NODE_RANK": "0", "MASTER_ADDR": "x"}
    done = Recorder(tmp_path).run(tmp_path / "train.sh", **topology)
    assert done.returncode == 0, done.stderr
    words = recorded(tmp_path)
    assert words[:4] == [
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        f"{tmp_path}/accelerate.yaml",
    ]
    assert words[words.index("--num_processes") + 1] == str(4 * nodes)
    assert words[words.index("--deepspeed_config_file") + 1] == f"{tmp_path}/ds_config.json"
    assert words[-4:] == ["--", "train.py", "--lr", "1e-4"]
