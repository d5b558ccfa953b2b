from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import get_args

import pytest

from autotune.numerics.thresholds import NUMBERED, THRESHOLDS, GateName, Thresholds
from autotune.request import Measure
from autotune.scales import SCALE_FIELDS
from autotune.setup import BACKENDS, PRECISIONS, WIRE_DTYPES
from autotune.space import DEFAULT_AXES
from autotune.spec import Budget, Spec, Target, read, read_spec
from autotune.spec.json_schema import json_schema
from autotune.spec.model import BaselineSection, GatesSection, SpaceSection
from autotune.workload import Gpt, PythonFactory, Workload
from tests.build import make_setup

SMALLEST = """\
version: 1
name: mine
workload:
  gpt: {layers: 2, width: 96, heads: 6, vocab: 128, sequence: 16}
  micro_batch: 4
  gradient_accumulation: 2
"""
FACTORY = """\
version: 1
name: mine
workload:
  python: my_package.train:build
  args: {depth: 3, rate: 1e-5, name: no, nothing: null, list: [1, a]}
  micro_batch: 4
  gradient_accumulation: 2
  seed: 7
"""


def spec_of(folder: Path, text: str) -> Spec:
    file = folder / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    return read_spec(file)


def test_the_smallest_file_takes_the_documented_defaults(tmp_path: Path) -> None:
    assert spec_of(tmp_path, SMALLEST) == Spec(
        name="mine",
        workload=Workload(
            model=Gpt(
                layers=2,
                width=96,
                heads=6,
                kv_heads=6,
                vocab=128,
                sequence=16,
                mlp_ratio=8 / 3,
                style="llama",
            ),
            micro_batch=4,
            gradient_accumulation=2,
            seed=0,
        ),
        ranks=None,
        deadline_seconds=300.0,
        probes_per_launch=50,
        axes={},
        baseline={},
        target=None,
        gates={},
        budget=Budget(minutes=10.0, probes=None),
        margin=0.01,
        templates=None,
        measure=Measure(),
        gate_steps=50,
        trace_steps=60,
        source=tmp_path / "mine.yaml",
        home=tmp_path,
    )


def test_the_example_of_the_design_is_read(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        """\
version: 1
name: mine                      # results in runs/mine
workload:                       # exactly one of gpt, hf, python, script
  gpt: {layers: 4, width: 256, heads: 4, vocab: 8192, sequence: 256}
  micro_batch: 4                # samples a rank and a backward call
  gradient_accumulation: 2      # backward calls a step
launch:
  local: {ranks: auto}
space:
  backend: [deepspeed, fsdp]
  precision: [fp32, bf16, fp16]
  grad_comm_dtype: [fp32, bf16]
  zero_stage: [1, 2, 3]
  bucket_bytes: [25e6, 100e6]
  overlap_comm: true
  loss_scale: {initial_power: [12, 16], window: [500, 1000, 2000], hysteresis: [1, 2]}
baseline: {backend: deepspeed, precision: fp32, zero_stage: 1, grad_comm_dtype: fp32}
target: {world_size: 64, steps: 100000}
budget: {minutes: 10}
margin: 1%
""",
    )
    assert spec.axes == {
        "backend": ("deepspeed", "fsdp"),
        "precision": ("fp32", "bf16", "fp16"),
        "grad_comm_dtype": ("fp32", "bf16"),
        "zero_stage": (1, 2, 3),
        "bucket_bytes": (25_000_000, 100_000_000),
        "overlap_comm": (True,),
        "loss_scale.initial_power": (12, 16),
        "loss_scale.window": (500, 1000, 2000),
        "loss_scale.hysteresis": (1, 2),
    }
    assert spec.baseline == {
        "backend": "deepspeed",
        "precision": "fp32",
        "grad_comm_dtype": "fp32",
        "zero_stage": 1,
    }
    assert spec.target == Target(world_size=64, steps=100_000, learning_rate=None)
    assert spec.margin == 0.01
    assert all(isinstance(size, int) for size in spec.axes["bucket_bytes"])


def test_a_factory_is_found_from_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec_of(tmp_path, FACTORY)
    monkeypatch.chdir(tmp_path)
    spec = read_spec(Path("mine.yaml"))
    assert spec.workload == Workload(
        model=PythonFactory(
            path="my_package.train:build",
            args={"depth": 3, "rate": 1e-5, "name": "no", "nothing": None, "list": [1, "a"]},
            folder=str(tmp_path),
        ),
        micro_batch=4,
        gradient_accumulation=2,
        seed=7,
    )
    assert spec.source == tmp_path / "mine.yaml"


@pytest.mark.parametrize(
    ("style", "given", "ratio"),
    [("gpt2", "", 4.0), ("llama", "", 8 / 3), ("gpt2", ", mlp_ratio: 3", 3.0)],
)
def test_the_style_decides_the_size_of_the_mlp(
    tmp_path: Path, style: str, given: str, ratio: float
) -> None:
    text = SMALLEST.replace("layers: 2", f"style: {style}, layers: 2{given}")
    model = spec_of(tmp_path, text).workload.model
    assert isinstance(model, Gpt)
    assert model.mlp_ratio == ratio


def test_gpt2_may_have_heads_of_odd_size(tmp_path: Path) -> None:
    text = SMALLEST.replace("heads: 6", "heads: 32, style: gpt2")
    assert spec_of(tmp_path, text).workload.model.heads == 32  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("margin", "fraction"),
    [("1%", 0.01), ("0.5 %", 0.005), ("'2%'", 0.02), ("0.03", 0.03), ("1e-3", 0.001), ("0", 0.0)],
)
def test_a_margin_is_a_percentage_or_a_fraction(
    tmp_path: Path, margin: str, fraction: float
) -> None:
    assert spec_of(tmp_path, SMALLEST + f"margin: {margin}\n").margin == fraction


@pytest.mark.parametrize(
    ("budget", "minutes", "probes"),
    [("{minutes: 0.5}", 0.5, None), ("{probes: 60}", None, 60), ("{minutes: 3, probes: 9}", 3, 9)],
)
def test_a_budget_is_minutes_or_probes_or_both(
    tmp_path: Path, budget: str, minutes: float | None, probes: int | None
) -> None:
    spec = spec_of(tmp_path, SMALLEST + f"budget: {budget}\n")
    assert spec.budget == Budget(minutes=minutes, probes=probes)


def test_a_launch_is_read(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        SMALLEST + "launch:\n  local: {ranks: 8, deadline_seconds: 60, probes_per_launch: 5}\n",
    )
    assert (spec.ranks, spec.deadline_seconds, spec.probes_per_launch) == (8, 60.0, 5)


def test_a_measure_is_read(tmp_path: Path) -> None:
    measure = "{warm_up_steps: 1, warm_up_cap: 2, timed_steps: 3, end_to_end_steps: 4}"
    spec = spec_of(tmp_path, SMALLEST + f"measure: {measure}\n")
    assert spec.measure == Measure(
        warm_up_steps=1, warm_up_cap=2, timed_steps=3, end_to_end_steps=4
    )


def test_the_steps_of_numerics_are_read_beside_the_measure(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, SMALLEST + "measure: {gate_steps: 8, trace_steps: 1e2}\n")
    assert (spec.gate_steps, spec.trace_steps, spec.measure) == (8, 100, Measure())


def test_a_learning_rate_is_read_as_the_real_runs(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, SMALLEST + "target: {learning_rate: 3e-4}\n")
    assert spec.target == Target(world_size=None, steps=None, learning_rate=3e-4)


def test_a_limit_comes_under_the_name_of_its_gate(tmp_path: Path) -> None:
    limits = "{relative_error: 0.02, weights_move: 0, activation_headroom: 1}"
    spec = spec_of(tmp_path, SMALLEST + f"gates: {limits}\n")
    assert spec.gates == {"relative-error": 0.02, "weights-move": 0.0, "activation-headroom": 1.0}


def test_the_file_has_every_gate_with_a_number() -> None:
    keys = [name.replace("_", "-") for name in GatesSection.model_fields]
    assert sorted(keys) == sorted(NUMBERED)


@pytest.mark.parametrize("gate", NUMBERED)
def test_a_key_tells_the_default_limit_of_its_gate(gate: GateName) -> None:
    told = GatesSection.model_fields[gate.replace("-", "_")].description
    limit = THRESHOLDS[gate].limit
    numbers = limit.values() if isinstance(limit, Mapping) else [limit]
    assert told is not None
    for number in numbers:
        assert re.search(rf"(?<![\d.]){re.escape(f'{number:g}')}(?!\d|\.\d)", told)


@pytest.mark.parametrize("bounds", ["minimum", "maximum"])
def test_the_gates_take_every_limit_that_a_file_may_hold(bounds: str) -> None:
    limits = {
        name.replace("_", "-"): float(key.get(bounds, 1e-12))
        for name, key in json_schema()["$defs"]["GatesSection"]["properties"].items()
    }
    thresholds = Thresholds.default().with_user(limits)
    for gate in NUMBERED:
        assert thresholds.bound(gate, make_setup()).limit == limits[gate]


def test_templates_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    spec = spec_of(tmp_path, SMALLEST + "templates: mine\n")
    assert spec.templates == tmp_path / "mine"


def test_a_baseline_is_flat_and_holds_false(tmp_path: Path) -> None:
    baseline = "{overlap_comm: false, bucket_bytes: 5e8, loss_scale: {window: 2e3}}"
    spec = spec_of(tmp_path, SMALLEST + f"baseline: {baseline}\n")
    assert spec.baseline == {
        "overlap_comm": False,
        "bucket_bytes": 500_000_000,
        "loss_scale.window": 2000,
    }


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    assert spec_of(tmp_path, "\ufeff" + SMALLEST).name == "mine"


def test_a_spec_cannot_be_changed(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, SMALLEST)
    with pytest.raises(FrozenInstanceError):
        spec.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("section", "beside"),
    [(SpaceSection, ()), (BaselineSection, read.OWN)],
    ids=["space", "baseline"],
)
def test_the_file_has_the_knobs_of_the_space(
    section: type[SpaceSection] | type[BaselineSection], beside: tuple[str, ...]
) -> None:
    scale = section.model_fields["loss_scale"].annotation
    (values, _) = get_args(scale)
    assert set(section.model_fields) == {*DEFAULT_AXES, "micro_batch", "loss_scale", *beside}
    assert tuple(values.model_fields) == SCALE_FIELDS


@pytest.mark.parametrize(
    ("knob", "values"),
    [("backend", BACKENDS), ("precision", PRECISIONS), ("grad_comm_dtype", WIRE_DTYPES)],
)
def test_every_value_of_a_setup_can_be_written(
    tmp_path: Path, knob: str, values: tuple[str, ...]
) -> None:
    spec = spec_of(tmp_path, SMALLEST + f"space: {{{knob}: [{', '.join(values)}]}}\n")
    assert spec.axes[knob] == values


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no symbolic links")
def test_a_linked_file_looks_beside_the_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    spec_of(tmp_path / "real", FACTORY)
    link = tmp_path / "link.yaml"
    link.symlink_to(tmp_path / "real" / "mine.yaml")
    model = read_spec(link).workload.model
    assert isinstance(model, PythonFactory)
    assert model.folder == str(tmp_path)
