"""launch.sh under ``LAUNCHER=accelerate``, read by accelerate's own launcher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.recorder import HOSTILE, Recorder, exported, recorded, script

BACKENDS = ["deepspeed", "fsdp", "ddp"]
SAFE = ["first", *HOSTILE]
"""accelerate 1.15.0 breaks on a first argument that is empty."""
Launch = Callable[..., list[str]]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Runs launch.sh; the words that accelerate's launcher gets."""
    folder = tmp_path / "it's $(a) folder"
    folder.mkdir()
    recorder = Recorder(folder)

    def launch(backend: str, *words: str, **environment: str) -> list[str]:
        path = exported(folder, backend=backend)
        environment = {"LAUNCHER": "accelerate", "NPROC_PER_NODE": "2", **environment}
        done = recorder.run(path, *words, **environment)
        assert done.returncode == 0, done.stderr
        found = recorded(folder)
        assert found[:2] == ["-m", "accelerate.commands.launch"]
        return found[2:]

    (folder / "train.py").write_text("", encoding="utf-8")
    return launch


def torchrun_of(words: list[str]) -> Any:
    """What accelerate's launcher hands to torch's, of its own command line."""
    from accelerate.commands import launch
    from accelerate.utils import launch as prepare
    from torch.distributed import run

    parsed = launch.launch_command_parser().parse_args(words)
    args, _, _ = launch._validate_launch_command(parsed)
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = "deepspeed_config_file"
        command, _ = prepare.prepare_deepspeed_cmd_env(args)
        assert command is None, "over ssh"
    else:
        prepare.prepare_multi_gpu_env(args)
    script = ["--training_script", args.training_script]
    default = [*script, "--training_script_args", args.training_script_args]
    return launch._filter_args(args, run.get_args_parser(), default)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_arguments_arrive_untouched_at_torchrun(launch: Launch, backend: str) -> None:
    found = torchrun_of(launch(backend, "train.py", *SAFE))
    assert (found.training_script, found.training_script_args) == ("train.py", SAFE)
    assert found.nproc_per_node == "2"
    assert not found.module


def test_a_module_is_started_as_one(launch: Launch) -> None:
    found = torchrun_of(launch("fsdp", "-m", "package.train", *SAFE))
    assert (found.training_script, found.training_script_args) == ("package.train", SAFE)
    assert found.module


@pytest.mark.parametrize("first", ["--", "--help", "--num_processes=9", "$(touch pwned)"])
def test_a_first_argument_that_looks_like_an_option_is_the_scripts(
    launch: Launch, first: str
) -> None:
    found = torchrun_of(launch("deepspeed", "train.py", first, "last"))
    assert found.training_script_args == [first, "last"]
    assert found.nproc_per_node == "2"


@pytest.mark.parametrize("first", ["", "-"])
def test_a_first_argument_that_accelerate_breaks_on_is_refused(tmp_path: Path, first: str) -> None:
    launch = exported(tmp_path)
    recorder = Recorder(tmp_path)
    done = recorder.run(launch, script(tmp_path), first, LAUNCHER="accelerate")
    assert done.returncode == 2
    assert "first ARGUMENT that is empty or -" in done.stderr
    assert not (tmp_path / "record").exists()
    with pytest.raises(TypeError, match="unhashable"):
        torchrun_of(["--num_processes", "2", "--", "train.py", first])


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_nodes_meet_at_the_first_one(launch: Launch, backend: str) -> None:
    nodes = {"NNODES": "4", "NODE_RANK": "2", "MASTER_ADDR": "head", "NPROC_PER_NODE": "8"}
    found = torchrun_of(launch(backend, "train.py", **nodes, MASTER_PORT="1234"))
    assert (found.nnodes, found.node_rank, found.nproc_per_node) == ("4", 2, "8")
    assert found.rdzv_endpoint == "head:1234"
    words = launch(backend, "train.py", **nodes)
    assert words[words.index("--num_processes") + 1] == "32"
    assert words[words.index("--main_process_port") + 1] == "29500"


def test_deepspeeds_json_is_found_from_any_folder(launch: Launch, tmp_path: Path) -> None:
    words = launch("deepspeed", "train.py")
    file = Path(words[words.index("--deepspeed_config_file") + 1])
    assert file == tmp_path / "it's $(a) folder" / "ds_config.json"


@pytest.mark.parametrize("backend", ["fsdp", "ddp"])
def test_only_deepspeed_gets_a_json(launch: Launch, backend: str) -> None:
    assert "--deepspeed_config_file" not in launch(backend, "train.py")


def test_without_a_number_the_processes_are_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    counting = recorder.python.read_text().replace("\n", '\n[ "$1" != -c ] || exec echo 8\n', 1)
    recorder.python.write_text(counting)
    done = recorder.run(exported(tmp_path), script(tmp_path), LAUNCHER="accelerate")
    assert done.returncode == 0, done.stderr
    words = recorded(tmp_path)
    assert words[words.index("--num_processes") + 1] == "8"


@pytest.mark.parametrize(
    ("variable", "value"),
    [("NPROC_PER_NODE", "gpu"), ("NPROC_PER_NODE", "a[$(touch pwned)]"), ("NNODES", "1:4")],
)
def test_a_number_that_accelerate_cannot_take_is_refused(
    tmp_path: Path, variable: str, value: str
) -> None:
    given = {"NPROC_PER_NODE": "2", "NODE_RANK": "0", "MASTER_ADDR": "head", variable: value}
    launch = exported(tmp_path)
    done = Recorder(tmp_path).run(launch, script(tmp_path), LAUNCHER="accelerate", **given)
    assert done.returncode == 2
    assert f"{variable} is {value}" in done.stderr
    assert not (tmp_path / "pwned").exists()
