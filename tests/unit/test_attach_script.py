"""Running a script as Python would, and what is said when it ends too early."""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from autotune.errors import UsageError
from autotune.launch.scratch import make_scratch
from autotune.probe.attach.ending import describe, ended_early, exit_code, in_folders
from autotune.probe.attach.imports import AfterImport
from autotune.probe.attach.orders import read_orders
from autotune.probe.attach.script import install_modules, run_script, seed_everything
from autotune.probe.attach.training import SwallowedError, Training
from autotune.probe.attach.worker import join_ranks
from autotune.request import Measure, ProbeRequest
from autotune.workload import Script, Workload
from tests.build import make_setup

TELL = """
import json, sys, helper
from pathlib import Path
seen = {"argv": sys.argv, "file": __file__, "name": __name__, "first": sys.path[0]}
seen["helper"] = helper.__file__
Path(sys.argv[1]).write_text(json.dumps(seen))
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """The user's folder and its mirror, which is the current one."""
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    (home / "package").mkdir(parents=True)
    for name in ("train.py", "package/train.py"):
        (home / name).write_text(TELL)
    for name in ("helper.py", "package/helper.py", "package/__init__.py"):
        (home / name).touch()
    make_scratch(home, scratch)
    monkeypatch.chdir(scratch)
    monkeypatch.setattr(sys, "path", [str(scratch), *sys.path])
    monkeypatch.setattr(sys, "argv", ["autotune"])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    yield home, scratch
    for name in ("helper", "package", "package.train"):
        sys.modules.pop(name, None)


def told(home: Path, scratch: Path, *words: str) -> dict[str, Any]:
    run_script(words, home, scratch)
    found: dict[str, Any] = json.loads((scratch / "told.json").read_text())
    return found


@pytest.mark.parametrize("absolute", [False, True])
def test_a_script_is_in_the_scratch_folder_and_its_imports_are_the_users(
    folders: tuple[Path, Path], absolute: bool
) -> None:
    home, scratch = folders
    word = str(home / "package/train.py") if absolute else "package/train.py"
    assert told(home, scratch, word, "told.json", "--x") == {
        "argv": [str(scratch / "package/train.py"), "told.json", "--x"],
        "file": str(scratch / "package/train.py"),
        "name": "__main__",
        "first": str(home / "package"),
        "helper": str(home / "package/helper.py"),
    }


def test_a_module_starts_from_the_users_folder(folders: tuple[Path, Path]) -> None:
    home, scratch = folders
    seen = told(home, scratch, "-m", "package.train", "told.json")
    assert seen["name"] == "__main__"
    assert seen["first"] == str(home)
    assert seen["argv"][1:] == ["told.json"]


def test_no_bytecode_is_left_beside_the_users_modules(folders: tuple[Path, Path]) -> None:
    home, scratch = folders
    told(home, scratch, "train.py", "told.json")
    assert not list(home.rglob("__pycache__"))


def test_a_script_that_sets_no_seed_draws_the_same_each_time() -> None:
    drawn = []
    for _ in range(2):
        seed_everything(3)
        drawn.append((random.random(), float(torch.rand(1))))
    assert drawn[0] == drawn[1]


def test_rendered_modules_are_installed_under_their_own_name(tmp_path: Path) -> None:
    (tmp_path / "made_setup.py").write_text("done = []\ndef install():\n    done.append(1)\n")
    try:
        install_modules([tmp_path / "made_setup.py"])
        assert sys.modules["made_setup"].done == [1]
    finally:
        sys.modules.pop("made_setup", None)


def test_a_module_is_changed_when_it_is_imported_and_keeps_its_loader(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = folders
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    changed: list[ModuleType] = []
    AfterImport({"package.helper": changed.append, "helper": changed.append}).install()
    assert changed == []
    module = __import__("package.helper").helper
    assert changed == [module]
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
    assert module.__file__ == str(home.parent / "scratch/package/helper.py")
    sys.modules.pop("package.helper")


def test_a_module_that_is_there_already_is_changed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    changed: list[ModuleType] = []
    AfterImport({"json": changed.append}).install()
    assert changed == [json]


def training() -> Training:
    def begin() -> Any:
        raise AssertionError

    return Training(begin, contextlib.nullcontext())


def early(made: Training, code: int = 0, launcher: str | None = None) -> str:
    measure = Measure(warm_up_cap=5, timed_steps=10, end_to_end_steps=5)
    own = in_folders(Path("/nowhere"))
    return ended_early(made, measure, code, launcher=launcher, own=own)


def test_a_script_without_a_backward_says_so() -> None:
    assert early(training(), 2).startswith(
        "The script ended without a backward pass (exit code 2)."
    )
    assert early(training(), launcher="torchrun train.py") == (
        "The script started its own launcher: torchrun train.py; give autotune the inner script."
    )


def test_a_script_that_ends_too_early_hears_how_many_steps_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Training, "begun", True)
    made = training()
    made.steps = 1
    text = early(made)
    assert text.startswith("The script ended after 1 optimizer step (exit code 0); a probe takes ")
    assert "at most 1 + 5 + 10 + 5 = 21: let it train longer" in text
    made.steps = 3
    made.caught = ValueError("boom")
    assert "after 3 optimizer steps" in early(made)
    assert early(made).endswith("Before that it caught ValueError: boom.")


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (3, 3), ("bad", 1), (True, 1)])
def test_exit_codes_are_those_of_python(code: Any, expected: int) -> None:
    assert exit_code(SystemExit(code)) == expected


def test_an_error_is_placed_in_the_users_own_code(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/library.py").write_text("def fail():\n    raise ValueError('boom')")
    code = compile("\n\nfail()\n", str(tmp_path / "train.py"), "exec")
    library: dict[str, Any] = {}
    path = tmp_path / "site-packages/library.py"
    exec(compile(path.read_text(), str(path), "exec"), library)
    with pytest.raises(ValueError, match="boom") as caught:
        exec(code, library)
    own = in_folders(tmp_path)
    assert describe(caught.value, own)["reason"] == "ValueError: boom (train.py:3)"
    swallowed = SwallowedError()
    swallowed.__cause__ = caught.value
    assert describe(swallowed, own) == {
        "kind": "crash",
        "reason": "ValueError: boom (train.py:3); the script caught this and went on.",
    }


def test_an_error_for_lack_of_memory_keeps_its_kind_when_it_was_caught() -> None:
    swallowed = SwallowedError()
    swallowed.__cause__ = torch.OutOfMemoryError("no room")
    assert describe(swallowed, in_folders())["kind"] == "oom"


def test_ranks_that_have_not_joined_each_other_are_refused() -> None:
    assert join_ranks(1).world_size == 1
    with pytest.raises(UsageError, match="on 2 ranks, but they train in groups of 1"):
        join_ranks(2)


def test_orders_come_out_of_their_file_as_they_went_in(tmp_path: Path) -> None:
    model = Script(command=("train.py", "{deepspeed_config}"), folder=str(tmp_path))
    request = ProbeRequest(
        setup=make_setup(precision="fp16"),
        rendered="text",
        workload=Workload(model=model, micro_batch=2, gradient_accumulation=2),
        measure=Measure(burst_steps=2),
    )
    message = {
        "request": asdict(request),
        "home": str(tmp_path),
        "scratch": str(tmp_path / "scratch"),
        "install": [str(tmp_path / "fsdp_setup.py")],
        "seed": 5,
        "losses": False,
        "not_redirected": [],
    }
    path = tmp_path / "attach.json"
    path.write_text(json.dumps(message))
    orders = read_orders(path)
    assert orders.request == request
    assert orders.install == (tmp_path / "fsdp_setup.py",)
    assert (orders.seed, orders.losses) == (5, False)
