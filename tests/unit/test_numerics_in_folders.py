"""Findings of runs on disk: opened again, replayed, and what a plan says of loss scales."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotune.launch import Machine
from autotune.numerics.findings import Missing, ScaleChoice
from autotune.search import Store
from autotune.setup import LossScale, Setup
from autotune.spec import read_spec
from autotune.sweep import Plan, Sweep
from autotune.wiring import Made, make_replay, result_of
from autotune.wiring.fingerprint import fingerprint
from autotune.wiring.plan import plan_of, scale_counts
from autotune.wiring.runs import SWEEP_FILE, _about, _target
from tests.scripted import FACTS, SWEEP, ScriptedLauncher, Where, make_plan

HALF = SWEEP.replace("[fp32, bf16]\n  grad", "[fp32, fp16]\n  grad").replace(
    "zero_stage: 1\n  bucket",
    "zero_stage: 1\n  loss_scale: {initial_power: [10, 12, 16], window: 1000, hysteresis: 2, "
    "minimum: 1}\n  bucket",
)
TARGET = "target: {world_size: 64}\n"


def fp16_is_faster(setup: Setup, where: Where) -> float:
    return 0.3 * (setup.precision == "fp16") + 0.1 * (setup.grad_comm_dtype == "bf16")


def made_of(folder: Path, text: str) -> Made:
    file = folder / "sweep.yaml"
    file.write_text(text)
    return plan_of(read_spec(file), Machine(FACTS))


def finished(folder: Path, text: str) -> Path:
    """A finished run, as a real one would lie in its folder."""
    made = made_of(folder, text)
    run = folder / "run"
    store = Store(run, create=True)
    store.describe(_about(made, fingerprint(made)))
    shutil.copy(folder / "sweep.yaml", run / SWEEP_FILE)
    launcher = ScriptedLauncher(fp16_is_faster)
    assert Sweep(made.plan, store, launcher, launcher.hear).run() == "decided"
    return run


def test_a_run_on_disk_keeps_its_findings_for_a_replay_that_ends_alike(tmp_path: Path) -> None:
    run = finished(tmp_path, HALF + TARGET)
    recorded = Store(run, create=False)
    session = make_replay(run, lambda event: None, file=None, budget=None, seed=0)
    assert session.run() == "decided"
    assert session.store.findings() == recorded.findings()
    assert not any(isinstance(item, Missing) for item in recorded.findings().values())
    before, after = result_of(recorded), result_of(session.store)
    assert (after["verdict"], after["winner"]) == (before["verdict"], before["winner"])
    assert before["verdict"] == "confirmed"


def test_a_replay_of_a_run_without_findings_misses_them_and_gives_a_verdict(
    tmp_path: Path,
) -> None:
    run = finished(tmp_path, SWEEP)
    bare = tmp_path / "bare"
    store, recorded = Store(bare, create=True), Store(run, create=False)
    store.describe(recorded.about)
    for probe in recorded.probes():
        store.add(probe)
    shutil.copy(run / SWEEP_FILE, bare / SWEEP_FILE)
    session = make_replay(bare, lambda event: None, file=None, budget=None, seed=0)
    assert session.run() == "decided"
    found = session.store.findings()
    assert found
    assert all(isinstance(item, Missing) for item in found.values())
    assert result_of(session.store)["verdict"] == "confirmed"


def test_a_replay_with_another_file_chooses_among_the_scales_of_that_file(tmp_path: Path) -> None:
    run = finished(tmp_path, HALF)
    other = tmp_path / "other.yaml"
    other.write_text(HALF.replace("[10, 12, 16]", "10"))
    session = make_replay(run, lambda event: None, file=other, budget=None, seed=0)
    assert session.run() == "decided"
    (choice,) = [
        item for item in session.store.findings().values() if isinstance(item, ScaleChoice)
    ]
    assert choice.tried == 1
    assert choice.chosen is not None
    assert choice.chosen.policy == LossScale(initial_power=10)


def plan_with(folder: Path, text: str) -> Plan:
    return make_plan(folder, text)


def test_a_plan_counts_the_scales_that_would_be_replayed(tmp_path: Path) -> None:
    assert scale_counts(plan_with(tmp_path, HALF)) == {"deepspeed": 3}
    both = HALF.replace("backend: deepspeed\n  p", "backend: [deepspeed, fsdp]\n  p")
    both = both.replace("zero_stage: 1\n  loss", "zero_stage: [1, 3]\n  loss")
    assert scale_counts(plan_with(tmp_path, both)) == {"deepspeed": 3, "grad-scaler": 3}
    assert scale_counts(plan_with(tmp_path, SWEEP)) == {}


@pytest.mark.parametrize(
    ("target", "steps", "assumed"),
    [
        ("", 10_000, ["steps", "learning_rate"]),
        ("target: {world_size: 64}\n", 10_000, ["steps", "learning_rate"]),
        ("target: {steps: 500}\n", 500, ["learning_rate"]),
        ("target: {steps: 500, learning_rate: 0.001}\n", 500, []),
    ],
)
def test_a_run_keeps_what_it_assumed_of_the_real_one(
    tmp_path: Path, target: str, steps: int, assumed: list[str]
) -> None:
    found = _target(plan_with(tmp_path, SWEEP + target))
    assert (found["steps"], found["assumed"]) == (steps, assumed)
    assert found["world_size"] == (64 if "world_size" in target else None)
