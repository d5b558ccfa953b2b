"""The exported launch script, run with a recorder in place of Python."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.recorder import HOSTILE, Recorder, exported, recorded, recorded_environment, script

TORCHRUN = ["-m", "torch.distributed.run"]
DEEPSPEED = ["-m", "deepspeed.launcher.runner"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose very name needs quoting."""
    path = tmp_path / "it's $(a) folder"
    path.mkdir()
    return path


@pytest.fixture
def run(folder: Path) -> Run:
    return Recorder(folder).run


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_the_script_and_its_arguments_arrive_untouched(
    folder: Path, run: Run, launcher: str
) -> None:
    name = script(folder, "train $(touch pwned) 'it'\n.py")
    assert run(exported(folder), name, *HOSTILE, LAUNCHER=launcher).returncode == 0
    words = recorded(folder)
    assert words[words.index("--") + 1 :] == [name, *HOSTILE]
    assert not (folder / "pwned").exists()


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_module_is_started_as_one(folder: Path, run: Run, launcher: str) -> None:
    done = run(exported(folder), "-m", "package.train", *HOSTILE, LAUNCHER=launcher)
    assert done.returncode == 0, done.stderr
    words = recorded(folder)
    assert words[words.index("--module") + 1 :] == ["--", "package.train", *HOSTILE]


def test_dash_m_without_a_module_is_a_wrong_use(folder: Path, run: Run) -> None:
    done = run(exported(folder), "-m")
    assert done.returncode == 2
    assert "-m MODULE" in done.stderr


@pytest.mark.parametrize("backend", ["deepspeed", "fsdp", "ddp"])
def test_one_node_is_standalone_with_the_processes_that_torchrun_finds(
    folder: Path, run: Run, backend: str
) -> None:
    name = script(folder)
    run(exported(folder, backend=backend), name)
    assert recorded(folder) == [
        *TORCHRUN, "--standalone", "--nproc-per-node", "auto", "--", name
    ]  # fmt: skip


def test_several_nodes_take_their_topology_from_the_environment(folder: Path, run: Run) -> None:
    name = script(folder)
    nodes = {"NNODES": "4", "NODE_RANK": "2", "MASTER_ADDR": "head node", "NPROC_PER_NODE": "8"}
    launch = exported(folder)
    run(launch, name, **nodes)
    topology = ["--nnodes", "4", "--node-rank", "2", "--master-addr", "head node"]
    port = ["--master-port", "29500"]
    assert recorded(folder) == [
        *TORCHRUN, *topology, *port, "--nproc-per-node", "8", "--", name
    ]  # fmt: skip
    run(launch, name, **nodes, MASTER_PORT="1234")
    assert recorded(folder)[8:10] == ["--master-port", "1234"]


def test_deepspeeds_launcher_starts_each_node_by_itself(folder: Path, run: Run) -> None:
    name = script(folder)
    launch = exported(folder)
    run(launch, name, LAUNCHER="deepspeed", NPROC_PER_NODE="2")
    one_node = ["--master_port", "29500", "--num_gpus", "2"]
    assert recorded(folder) == [*DEEPSPEED, *one_node, "--no_local_rank", "--", name]
    nodes = {"NNODES": "4", "NODE_RANK": "2", "MASTER_ADDR": "head", "HOSTFILE": "the hosts"}
    run(launch, name, LAUNCHER="deepspeed", **nodes)
    several = ["--master_port", "29500", "--hostfile", "the hosts", "--num_nodes", "4"]
    rank = ["--no_ssh", "--node_rank", "2", "--master_addr", "head", "--no_local_rank"]
    assert recorded(folder) == [*DEEPSPEED, *several, *rank, "--", name]


def test_a_script_that_looks_like_an_option_is_given_as_a_path(folder: Path, run: Run) -> None:
    run(exported(folder), script(folder, "-c.py"), "-x")
    assert recorded(folder)[-3:] == ["--", "./-c.py", "-x"]


def test_without_a_script_it_prints_its_usage_and_starts_nothing(folder: Path, run: Run) -> None:
    for backend, launchers in (("deepspeed", True), ("fsdp", False), ("ddp", False)):
        done = run(exported(folder / backend, backend=backend))
        assert done.returncode == 2
        assert done.stdout == ""
        assert "Usage: launch.sh SCRIPT" in done.stderr
        assert ("HOSTFILE" in done.stderr) is launchers
        assert "accelerate" in done.stderr
    assert not (folder / "record").exists()


@pytest.mark.parametrize(
    ("backend", "environment", "message"),
    [
        ("fsdp", {"LAUNCHER": "deepspeed"}, "this is an FSDP setup"),
        ("ddp", {"LAUNCHER": "deepspeed"}, "this is a DDP setup"),
        ("fsdp", {"LAUNCHER": "mpi"}, "LAUNCHER is mpi; it can be torchrun or accelerate"),
        ("deepspeed", {"LAUNCHER": "mpi"}, "torchrun, accelerate or deepspeed"),
        ("fsdp", {"NNODES": "2", "MASTER_ADDR": "head"}, "set NODE_RANK"),
        ("deepspeed", {"NNODES": "2", "NODE_RANK": "0"}, "set MASTER_ADDR"),
        (
            "deepspeed",
            {"LAUNCHER": "deepspeed", "NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "head"},
            "set HOSTFILE",
        ),
    ],
)
def test_a_launch_that_cannot_be_is_refused_in_one_line(
    folder: Path, run: Run, backend: str, environment: dict[str, str], message: str
) -> None:
    done = run(exported(folder, backend=backend), script(folder), **environment)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "record").exists()


def test_a_missing_script_and_an_argument_that_deepspeed_loses_are_refused(
    folder: Path, run: Run
) -> None:
    launch = exported(folder)
    missing = run(launch, "absent.py")
    lost = run(launch, script(folder), "--", "-x", LAUNCHER="deepspeed")
    assert (missing.returncode, lost.returncode) == (2, 2)
    assert "absent.py is not a file" in missing.stderr
    assert "loses a first ARGUMENT of --" in lost.stderr
    assert not (folder / "record").exists()


def test_the_environment_names_the_configuration_wherever_it_is_started_from(
    folder: Path, run: Run
) -> None:
    launch = exported(folder, micro_batch=3, gradient_accumulation=5)
    name = script(folder)
    above = f"../{folder.name}/launch.sh"
    for words in ([launch], ["./launch.sh"], [above], ["bash", "launch.sh"]):
        assert run(*words, name, CDPATH="/").returncode == 0
        environment = recorded_environment(folder)
        assert environment["AUTOTUNE_DEEPSPEED_CONFIG"] == str(folder / "ds_config.json")
        assert environment["AUTOTUNE_MICRO_BATCH"] == "3"
        assert environment["AUTOTUNE_GRADIENT_ACCUMULATION"] == "5"
        assert "PYTHONPATH" not in environment
        assert "AUTOTUNE_FSDP_SETUP" not in environment


def test_a_cdpath_does_not_lead_to_another_folder_of_the_same_name(folder: Path, run: Run) -> None:
    exported(folder / "tuned")
    exported(folder / "decoys/tuned")
    done = run("bash", "tuned/launch.sh", script(folder), CDPATH=str(folder / "decoys"))
    assert done.returncode == 0, done.stderr
    found = recorded_environment(folder)["AUTOTUNE_DEEPSPEED_CONFIG"]
    assert found == str(folder / "tuned/ds_config.json")


def test_a_launch_env_that_is_sourced_under_a_cdpath_finds_its_own_folder(folder: Path) -> None:
    exported(folder / "tuned")
    exported(folder / "decoys/tuned")
    found = subprocess.check_output(
        ["bash", "-c", 'source tuned/launch.env; printf %s "$AUTOTUNE_FOLDER"'],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "CDPATH": str(folder / "decoys")},
        text=True,
    )
    assert found == str(folder / "tuned")


@pytest.mark.parametrize(("backend", "other"), [("fsdp", "DDP"), ("ddp", "FSDP")])
def test_the_environment_of_fsdp_and_ddp_lets_python_import_the_module(
    folder: Path, run: Run, backend: str, other: str
) -> None:
    launch = exported(folder, backend=backend)
    run(launch, script(folder), PYTHONPATH="/users/own")
    environment = recorded_environment(folder)
    own = f"AUTOTUNE_{backend.upper()}_SETUP"
    assert environment[own] == str(folder / f"{backend}_setup.py")
    assert environment["PYTHONPATH"] == f"{folder}:/users/own"
    assert not {"AUTOTUNE_DEEPSPEED_CONFIG", f"AUTOTUNE_{other}_SETUP"} & set(environment)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("before", ["0", "1"])
def test_tf32_is_on_exactly_when_it_was_measured(
    folder: Path, run: Run, precision: str, before: str
) -> None:
    launch = exported(folder, precision=precision)
    run(launch, script(folder), TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=before)
    found = recorded_environment(folder)["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"]
    assert found == ("1" if precision == "tf32" else "0")


@pytest.mark.parametrize("on", [True, False])
def test_activation_checkpointing_is_told_to_the_script(folder: Path, run: Run, on: bool) -> None:
    run(exported(folder, activation_checkpointing=on), script(folder))
    found = recorded_environment(folder)["AUTOTUNE_ACTIVATION_CHECKPOINTING"]
    assert found == str(int(on))


@pytest.mark.parametrize("backend", ["deepspeed", "fsdp", "ddp"])
def test_the_environment_can_be_sourced_alone_under_strict_bash(folder: Path, backend: str) -> None:
    exported(folder, backend=backend)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    command = 'set -euo pipefail; source ../launch.env; printf %s "$AUTOTUNE_FOLDER"'
    found = subprocess.run(
        ["bash", "-c", command],
        cwd=elsewhere,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == str(folder)
    assert found.stderr == ""
