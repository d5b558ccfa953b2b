"""What the command line does with wrong input; whole sweeps are tested elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.search import Store
from tests.build import make_probe, make_setup


def autotune(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "missing.yaml"), "missing.yaml"),
        (("sweep", "missing.yaml"), "missing.yaml"),
        (("sweep", "wrong.yaml"), "wrong.yaml:2: nmae: is not a known key; did you mean name?"),
        (("sweep", "any.yaml", "--budget", "soon"), "'soon' is no budget; allowed: a time such as"),
        (("sweep", "any.yaml", "--budget", "0m"), "'0m' is no budget"),
        (("sweep", "any.yaml", "--budget", "1.5p"), "'1.5p' is no budget"),
        (("sweep",), "Give the sweep file"),
        (("sweep", "--replay", "runs/none"), "holds no run"),
        (("confirm", "runs/none"), "holds no run"),
        (("confirm", "runs/none", "--launches", "3"), "3 are too few for a verdict"),
        (("doctor", "any.yaml"), "only used with --noise"),
        (("show", "runs/none"), "holds no run"),
        (("export", "runs/none", "--to", "deepspeed"), "holds no run"),
    ],
)
def test_wrong_input_is_one_error_on_stderr_and_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "wrong.yaml").write_text("version: 1\nnmae: x\n")
    done = autotune(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("arguments", [("--nonsense",), ("confirm",), ("export", "x")])
def test_wrong_usage_is_exit_code_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert autotune(*arguments, folder=tmp_path).returncode == 2


def test_a_wrong_sweep_file_creates_nothing(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("version: 2\n")
    autotune("sweep", "wrong.yaml", folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.yaml"]


def test_a_run_of_an_older_version_can_be_shown_but_not_confirmed_or_replayed(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "old", create=True)
    store.add(make_probe(0, baseline=True))
    about = {"name": "old", "baseline": make_setup().to_dict(), "removed": [], "planned": {}}
    store.describe({**about, "fingerprint": {}})
    assert autotune("show", "old", folder=tmp_path).returncode == 0
    for command in (("confirm", "old"), ("sweep", "--replay", "old")):
        done = autotune(*command, folder=tmp_path)
        assert done.returncode == 2
        assert "was measured by an older autotune" in done.stderr
