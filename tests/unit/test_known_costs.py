"""Costs of earlier runs, which spare a calibrating launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.decide.budget import Costs
from autotune.launch import Machine
from autotune.search import Store
from autotune.spec import read_spec
from autotune.wiring.fingerprint import fingerprint
from autotune.wiring.plan import Made, known_costs, plan_of
from tests.scripted import FACTS, SWEEP

COSTS = {"launch_seconds": 5.0, "probe_seconds": 1.5}


def made(folder: Path, text: str = SWEEP, **facts: object) -> Made:
    file = folder / "sweep.yaml"
    file.write_text(text)
    return plan_of(read_spec(file), Machine({**FACTS, **facts}))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    store = Store(tmp_path / "runs" / "earlier", create=True)
    store.describe({"fingerprint": fingerprint(made(tmp_path)), "planned": {"costs": COSTS}})
    return tmp_path / "runs"


def test_a_comparable_run_tells_what_launches_and_probes_cost(tmp_path: Path, runs: Path) -> None:
    found = known_costs(made(tmp_path), runs)
    assert found == (Costs(**COSTS), f"the run in {runs / 'earlier'}")


def test_another_space_or_baseline_of_one_workload_is_comparable(
    tmp_path: Path, runs: Path
) -> None:
    wider = SWEEP.replace("zero_stage: 1\n  bucket", "zero_stage: [1, 2]\n  bucket")
    assert known_costs(made(tmp_path, wider), runs) is not None


@pytest.mark.parametrize(("old", "new"), [("width: 32", "width: 64"), ("ranks: 2", "ranks: 1")])
def test_another_workload_or_world_size_is_not(
    tmp_path: Path, runs: Path, old: str, new: str
) -> None:
    assert known_costs(made(tmp_path, SWEEP.replace(old, new)), runs) is None


def test_another_torch_is_not_and_neither_is_a_run_without_costs(
    tmp_path: Path, runs: Path
) -> None:
    assert known_costs(made(tmp_path, torch="2.14.0"), runs) is None
    assert known_costs(made(tmp_path), tmp_path / "none") is None
