"""The README's own example, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.test_sweep import autotune, rows

README = Path(__file__).parents[2] / "README.md"


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)
    return str(found)


@pytest.mark.timeout(300)
def test_the_sweep_file_and_the_factory_of_the_readme_work(tmp_path: Path) -> None:
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").touch()
    (tmp_path / "mypackage" / "tuning.py").write_text(block("python"))
    text = block("yaml")
    assert "budget: {minutes: 10}" in text
    text = text.replace("{minutes: 10}", "{probes: 20}")
    short = "measure: {gate_steps: 8, trace_steps: 20}\n"
    (tmp_path / "mine.yaml").write_text(text + short)
    planned = autotune("plan", "mine.yaml", folder=tmp_path)
    assert planned.returncode == 0, planned.stderr
    done = autotune("sweep", "mine.yaml", folder=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    (tmp_path / "runs" / "mine").rename(tmp_path / "runs" / "tried")
    assert {row["outcome"] for row in rows(tmp_path).values()} == {"ok"}


def test_every_command_of_the_readme_is_one(tmp_path: Path) -> None:
    commands = set(re.findall(r"autotune (\w+) ", README.read_text()))
    known = {"plan", "sweep", "confirm", "show", "export", "doctor"}
    for name in commands & known:
        assert autotune(name, "--help", folder=tmp_path).returncode == 0
    assert known <= commands
