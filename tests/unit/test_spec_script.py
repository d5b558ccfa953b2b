"""A workload that is the user's own script."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.spec import Command, Spec, read_spec
from autotune.workload import Script

FILE = """
version: 1
name: mine
workload:
  script: {%s}
  micro_batch: 2
  gradient_accumulation: 2
"""


def spec_of(folder: Path, script: str = "", *words: str) -> Spec:
    file = folder / "mine.yaml"
    file.write_text(FILE % script)
    command = Command(words=words, folder=folder) if words else None
    return read_spec(file, None, command)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('hello')")
    return tmp_path


def test_the_command_line_of_autotune_gives_the_script(folder: Path) -> None:
    spec = spec_of(folder, "", "train.py", "--config", "{deepspeed_config}")
    assert spec.workload.model == Script(
        command=("train.py", "--config", "{deepspeed_config}"),
        launcher="torchrun",
        folder=str(folder),
    )


def test_the_sweep_file_gives_the_script_as_a_shell_would_read_it(folder: Path) -> None:
    spec = spec_of(folder, "command: 'train.py --name \"a b\" {bf16}', launcher: accelerate")
    assert isinstance(spec.workload.model, Script)
    assert spec.workload.model.command == ("train.py", "--name", "a b", "{bf16}")
    assert spec.workload.model.launcher == "accelerate"


def test_a_module_is_a_script_too(folder: Path) -> None:
    spec = spec_of(folder, "", "-m", "package.train")
    assert isinstance(spec.workload.model, Script)
    assert spec.workload.model.command == ("-m", "package.train")


@pytest.mark.parametrize(
    ("script", "words", "expected"),
    [
        ("", (), "workload.script has no command; put it after --"),
        ("command: train.py", ("train.py",), "another stands after --; keep one"),
        ("command: 'train.py \"x'", (), "cannot be split into words"),
        ("", ("torchrun", "train.py"), "starts with 'torchrun', which is no file"),
        ("", ("-m",), "ends after -m; name the module"),
        ("", ("train.py", "{deepspeed_confg}"), "did you mean {deepspeed_config}?"),
        ("", ("train.py", "{lr}"), "or {{lr}} for the braces themselves"),
        ("launcher: slurm", ("train.py",), "workload.script.launcher: 'slurm' is not allowed"),
    ],
)
def test_a_wrong_script_is_refused_with_what_to_do(
    folder: Path, script: str, words: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        spec_of(folder, script, *words)
    assert expected in str(caught.value)


def test_a_script_beside_another_model_is_refused(folder: Path) -> None:
    file = folder / "mine.yaml"
    file.write_text(FILE.replace("script: {%s}", "python: a:b"))
    command = Command(words=("train.py",), folder=folder)
    with pytest.raises(UsageError, match="workload names another model"):
        read_spec(file, None, command)
