"""A baseline out of the user's own configuration file, from the sweep file to the rendered text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.bundle import unbundle
from autotune.configs import read_deepspeed
from autotune.configs.understood import Understood
from autotune.errors import UsageError
from autotune.launch import Machine
from autotune.spec import read_spec
from autotune.sweep import Plan
from autotune.sweep.rendering import render_setup
from autotune.wiring.fingerprint import fingerprint
from autotune.wiring.plan import Made, plan_of
from tests.scripted import FACTS, SWEEP

OWN = """{
  // what we train with
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 2,
  "bf16": {"enabled": true},
  "gradient_clipping": 0.5,
  "zero_optimization": {"stage": 1, "round_robin_gradients": true, "reduce_bucket_size": 1e7},
}
"""
SCRIPT = """
version: 1
name: mine
workload:
  script: {command: 'train.py {deepspeed_config}', launcher: accelerate}
  micro_batch: 2
  gradient_accumulation: 2
launch: {local: {ranks: 2}}
space: {backend: [deepspeed, fsdp], precision: [fp32, bf16], zero_stage: 2, bucket_bytes: 25e6}
baseline: {deepspeed_config: ds.json}
"""


def made(folder: Path, sweep: str, own: str = OWN) -> Made:
    (folder / "ds.json").write_text(own)
    (folder / "train.py").touch()
    (folder / "sweep.yaml").write_text(sweep)
    return plan_of(read_spec(folder / "sweep.yaml"), Machine(FACTS))


def with_own(baseline: str = "{deepspeed_config: ds.json}") -> str:
    lines = SWEEP.splitlines()
    kept = [line for line in lines if not line.startswith("baseline:")]
    return "\n".join([*kept, f"baseline: {baseline}", ""])


def rendered(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(render_setup(plan, plan.baseline))
    return found


def test_the_baseline_is_what_the_file_says(tmp_path: Path) -> None:
    setup = made(tmp_path, with_own()).plan.baseline
    assert (setup.backend, setup.precision, setup.grad_comm_dtype) == ("deepspeed", "bf16", "bf16")
    assert (setup.zero_stage, setup.bucket_bytes) == (1, 20_000_000)


def test_what_has_no_knob_stays_in_the_baseline_and_in_every_setup(tmp_path: Path) -> None:
    plan = made(tmp_path, with_own()).plan
    for setup in (plan.baseline, *plan.space.valid()):
        config = json.loads(render_setup(plan, setup))
        assert config["gradient_clipping"] == 0.5
        assert config["zero_optimization"]["round_robin_gradients"] is True
        assert config["zero_optimization"]["stage"] == setup.zero_stage
        assert config["bf16"]["enabled"] is (setup.precision == "bf16")


def test_the_rendered_baseline_is_read_back_as_the_same_setup(tmp_path: Path) -> None:
    plan = made(tmp_path, with_own()).plan
    again = tmp_path / "again.json"
    again.write_text(json.dumps(rendered(plan)))
    first, second = read_deepspeed(tmp_path / "ds.json"), read_deepspeed(again)
    assert isinstance(first, Understood)
    assert isinstance(second, Understood)
    assert second.knobs == first.knobs


def test_a_script_gets_the_users_file_and_accelerates_beside_it(tmp_path: Path) -> None:
    plan = made(tmp_path, SCRIPT).plan
    files = unbundle(render_setup(plan, plan.baseline))
    assert set(files) == {"ds_config.json", "accelerate.yaml"}
    assert json.loads(files["ds_config.json"])["gradient_clipping"] == 0.5


@pytest.mark.parametrize(
    ("baseline", "own", "expected"),
    [
        ("{deepspeed_config: no.json}", OWN, "'no.json' is not a file"),
        ("{deepspeed_config: ds.json, accelerate_config: ds.json}", OWN, "are both given"),
        ("{deepspeed_config: ds.json, precision: fp32}", OWN, "baseline.precision is "),
        ("{deepspeed_config: ds.json}", OWN.replace(': 2,\n  "grad', ': 4,\n  "grad'), "says 4"),
        (
            "{deepspeed_config: ds.json}",
            '{"bf16": {"enabled": true, "loss_scale": 0}}',
            "loss_scale",
        ),
    ],
    ids=["missing", "two files", "contradiction", "another batch", "refused"],
)
def test_a_file_that_cannot_be_the_baseline_is_refused_by_name(
    tmp_path: Path, baseline: str, own: str, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        made(tmp_path, with_own(baseline), own)
    assert expected in str(caught.value)


def test_another_content_of_the_file_is_another_run_and_another_layout_is_not(
    tmp_path: Path,
) -> None:
    first = fingerprint(made(tmp_path, with_own()))
    assert fingerprint(made(tmp_path, with_own(), OWN.replace("  ", "    "))) == first
    assert fingerprint(made(tmp_path, with_own(), OWN.replace("0.5", "0.6"))) != first


def test_a_model_of_hugging_face_is_known_by_its_configuration_not_its_place(
    tmp_path: Path,
) -> None:
    found = []
    for place, width in (("one", 64), ("two", 64), ("three", 128)):
        folder = tmp_path / place
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": width}))
        lines = SWEEP.replace(
            "gpt: {layers: 2, width: 32, heads: 2, vocab: 64, sequence: 16}", "hf: ."
        )
        found.append(fingerprint(made(folder, lines))["workload"])
    assert found[0] == found[1] != found[2]
