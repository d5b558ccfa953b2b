"""The built wheel, installed apart from the source tree."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.integration.test_sweep import SHORT

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, codes: Sequence[int] = (0,), **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in codes, done.stderr + done.stdout
    return done.stdout


def install_wheel(folder: Path) -> Path:
    """A venv with the wheel; its dependencies are borrowed from the running interpreter."""
    run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, ROOT),
        cwd=folder,
    )
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=folder)
    here = run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=folder).strip()
    # Read after the venv's own packages, and as plain paths: no editable install comes along.
    Path(here, "borrowed.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return python


def test_the_wheel_plans_sweeps_and_exports_outside_the_source_tree(tmp_path: Path) -> None:
    python = install_wheel(tmp_path)
    place = run(python, "-c", "import autotune; print(autotune.__file__)", cwd=tmp_path)
    assert place.startswith(str(tmp_path))
    (tmp_path / "sweep.yaml").write_text(SHORT)
    script = python.with_name("autotune")
    assert "8 setups to try" in run(script, "plan", "sweep.yaml", cwd=tmp_path)
    ended = run(script, "sweep", "sweep.yaml", cwd=tmp_path, codes=(0, 1))
    assert ended.startswith(("INCONCLUSIVE", "KEEP-BASELINE"))
    key = "deepspeed.z3.fp32.wire-fp32.mb2x2.bucket25000000"
    run(
        *(script, "export", "runs/tried", "--to", "launch", "-o", "tuned", "--setup", key),
        cwd=tmp_path,
    )
    assert (tmp_path / "tuned" / "ds_config.json").is_file()
