"""Every exported shell script, as shellcheck sees it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.bundle import bundle
from autotune.export import DIALECTS, export, subject_of, write
from autotune.export.subject import Subject
from autotune.setup import BACKENDS
from autotune.workload import Script, ScriptLauncher
from tests.build import make_probe, make_setup
from tests.unit.test_export import MEASURED_JSON, MEASURED_MODULE, PROVENANCE, probe_of

FILES = {
    "deepspeed": {"ds_config.json": MEASURED_JSON},
    "fsdp": {"fsdp_setup.py": MEASURED_MODULE},
    "ddp": {"ddp_setup.py": MEASURED_MODULE},
}
HOSTILE = ("it's.py", "--to", '$(x) `y` "z"', "new\nline", "{output_dir}")


def subject(backend: str, measured: ScriptLauncher | None) -> Subject:
    """Of a setup, or of a script that was measured under a launcher."""
    setup = make_setup(backend=backend, precision="bf16")
    if measured is None:
        return subject_of(probe_of(setup), PROVENANCE)
    probe = replace(make_probe(0, setup), rendered=bundle(FILES[backend]))
    return subject_of(probe, PROVENANCE, None, Script(command=HOSTILE, launcher=measured))


def scripts_in(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.iterdir())
        if path.suffix in (".sh", ".env", ".sbatch") or path.read_bytes().startswith(b"#!")
    ]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("measured", [None, "torchrun", "accelerate"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_scripts_of_every_dialect_are_clean_to_shellcheck(
    tmp_path: Path, backend: str, measured: ScriptLauncher | None
) -> None:
    made = subject(backend, measured)
    for name, dialect in DIALECTS.items():
        if backend in dialect.backends:
            write(export(made, name), tmp_path / name)
    scripts = [path for folder in tmp_path.iterdir() for path in scripts_in(folder)]
    names = {path.name for path in scripts}
    assert names >= {"launch.sh", "launch.env", "train.sbatch"}
    assert ("train.sh" in names) is (measured is not None)
    found = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert found.stdout == ""
    assert found.returncode == 0
