"""The examples, unchanged, as probes of a script; whole sweeps of them are slow tests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.launch import Machine, ScriptLauncher
from autotune.launch.describe import worker_environment
from autotune.outcome import Measurement, Outcome
from autotune.request import Measure, ProbeRequest
from autotune.setup import Setup
from autotune.spec import read_spec
from autotune.sweep import Plan
from autotune.sweep.rendering import render_setup
from autotune.wiring.plan import plan_of

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = Measure(warm_up_steps=1, warm_up_cap=1, timed_steps=2, end_to_end_steps=1)
KINDS = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy of the examples, as a user has them."""
    folder = tmp_path / "mine"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    return folder


def plan_for(home: Path, kind: str, machine: Machine) -> Plan:
    return plan_of(read_spec(home / f"{kind}.yaml"), machine).plan


def probed(plan: Plan, setup: Setup, machine: Machine, folder: Path) -> Outcome:
    assert plan.script is not None
    launcher = ScriptLauncher(2, worker_environment(machine, 2), folder, plan.script)
    request = ProbeRequest(
        setup=setup,
        rendered=render_setup(plan, setup),
        workload=plan.spec.workload,
        measure=QUICK,
    )
    return launcher.start(0).probe(request, 100)


def measured(outcome: Outcome) -> Measurement:
    assert outcome.kind == "ok", (outcome.reason, outcome.log)
    assert outcome.measurement is not None
    return outcome.measurement


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_plain_ddp_script_gets_its_wire_dtype_and_leaves_no_trace(
    home: Path, machine: Machine, tmp_path: Path
) -> None:
    plan = plan_for(home, "ddp", machine)
    before = digests(home)
    setup = replace(plan.baseline, grad_comm_dtype="bf16")
    outcome = probed(plan, setup, machine, tmp_path / "launches")
    found = measured(outcome)
    assert {item.dtype for item in found.wire} == {"bf16"}
    assert len(found.trained_losses) == len(found.gradient_norms) >= 4
    assert digests(home) == before
    assert not list((tmp_path / "launches").rglob("checkpoints"))
    assert any("checkpoints" in note for note in outcome.notes)


def test_the_hugging_face_trainer_keeps_its_auto_values_and_follows_the_setup(
    home: Path, machine: Machine, tmp_path: Path
) -> None:
    plan = plan_for(home, "hf_deepspeed", machine)
    setup = replace(plan.baseline, precision="bf16", grad_comm_dtype="fp32", zero_stage=1)
    found = measured(probed(plan, setup, machine, tmp_path / "launches"))
    assert {item.dtype for item in found.wire} == {"fp32"}
    (text,) = (path.read_text() for path in tmp_path.rglob("launches/**/ds_config.json"))
    config = json.loads(text)
    assert config["optimizer"]["params"]["lr"] == "auto"
    assert config["train_micro_batch_size_per_gpu"] == "auto"
    assert config["bf16"]["enabled"] is True
    assert config["communication_data_type"] == "fp32"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_every_example_is_tuned_to_a_verdict_and_its_export_trains_it(
    home: Path, kind: str, tmp_path: Path
) -> None:
    before = digests(home)
    swept = autotune(tmp_path, "sweep", str(home / f"{kind}.yaml"), "--json")
    assert swept.returncode in (0, 1), swept.stderr
    result = json.loads(swept.stdout)
    assert result["verdict"] in ("confirmed", "keep-baseline", "inconclusive"), swept.stderr
    assert digests(home) == before
    run = tmp_path / "runs" / result["name"]
    measured_keys = [row["key"] for row in result["setups"] if row["outcome"] == "ok"]
    other = next(key for key in measured_keys if key != result["baseline"])
    exported = autotune(
        tmp_path, "export", str(run), "--to", "launch", "--setup", other, "-o", str(home / "tuned")
    )
    assert exported.returncode == 0, exported.stderr
    assert trains(home)


def autotune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autotune", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def trains(home: Path) -> bool:
    """Whether train.sh trains the script, with what the notes ask to add to it."""
    for module in ("fsdp_setup", "ddp_setup"):
        if (home / "tuned" / f"{module}.py").exists():
            for script in home.glob("train_*.py"):
                lines = script.read_text().split("from __future__ import annotations\n")
                first = f"from __future__ import annotations\nimport {module}; {module}.install()\n"
                script.write_text(first.join(lines))
    environment = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "NPROC_PER_NODE": "2"}
    done = subprocess.run(
        [str(home / "tuned" / "train.sh"), *short(home)],
        cwd=home,
        env={**os.environ, **environment, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return (home / "checkpoints").exists()


def short(home: Path) -> list[str]:
    """Arguments that end the training after a few steps; the last one counts."""
    script = (home / "tuned" / "train.sh").read_text()
    return ["--max_steps", "3"] if "train_hf.py" in script else ["--steps", "3"]
