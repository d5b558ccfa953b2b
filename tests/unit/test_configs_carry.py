from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.backends import RESTRICTIONS, backend_of
from autotune.configs import Refused, Understood, carry, read_deepspeed, settle
from autotune.configs.deepspeed import understand_deepspeed
from autotune.render import render
from autotune.setup import LossScale, Setup
from autotune.space import make_baseline, make_space
from tests.build import TINY, make_context, make_setup

CONFIGS = Path(__file__).parents[1] / "configs"
OWN = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_clipping": 0.3,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95]}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
    "fp16": {"enabled": False, "auto_cast": True, "loss_scale": 128},
    "bf16": {"enabled": True, "check_grad_overflow": False},
    "zero_optimization": {
        "stage": 2,
        "reduce_bucket_size": 1000,
        "offload_optimizer": {"device": "cpu"},
        "zero_hpz_partition_size": 8,
    },
    "activation_checkpointing": {"partition_activations": True},
    "mine": {"anything": [1, None]},
}
KNOB_KEYS = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *("communication_data_type", "fp16", "bf16", "zero_optimization"),
}


def rendered(setup: Setup) -> dict[str, Any]:
    backend = backend_of(setup)
    text: dict[str, Any] = json.loads(render(backend.template, backend.variables(setup), None))
    return text


def carried(config: dict[str, Any], setup: Setup, *, auto: bool = False) -> dict[str, Any]:
    return carry(rendered(setup), config, setup, auto=auto)


FP16 = make_setup(
    precision="fp16",
    grad_comm_dtype="bf16",
    zero_stage=3,
    overlap_comm=True,
    loss_scale=LossScale(initial_power=8, window=50, hysteresis=4, minimum=2),
)


def test_the_knobs_are_the_setups() -> None:
    found = carried(OWN, FP16)
    assert found["train_micro_batch_size_per_gpu"] == 2
    assert found["gradient_accumulation_steps"] == 2
    assert found["communication_data_type"] == "bf16"
    assert found["fp16"] == {
        "enabled": True,
        "auto_cast": True,
        "loss_scale": 0,
        "initial_scale_power": 8,
        "loss_scale_window": 50,
        "hysteresis": 4,
        "min_loss_scale": 2,
    }
    assert found["bf16"] == {"enabled": False, "check_grad_overflow": False}
    assert found["zero_optimization"] == {
        "stage": 3,
        "reduce_bucket_size": 12_500_000,
        "overlap_comm": True,
        "offload_optimizer": {"device": "cpu"},
        "zero_hpz_partition_size": 8,
    }


@pytest.mark.parametrize("auto", [True, False])
def test_what_is_no_knob_stays_as_the_user_wrote_it(auto: bool) -> None:
    before = copy.deepcopy(OWN)
    found = carried(OWN, FP16, auto=auto)
    others = {key: value for key, value in OWN.items() if key not in KNOB_KEYS}
    assert {key: value for key, value in found.items() if key not in KNOB_KEYS} == others
    assert before == OWN


def test_a_batch_that_deepspeed_derives_is_left_to_it() -> None:
    assert "train_batch_size" not in carried(OWN, FP16)


def test_both_precisions_are_always_said() -> None:
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        found = carried({"train_batch_size": 2}, make_setup(precision=precision))
        assert found["fp16"]["enabled"] is (precision == "fp16")
        assert found["bf16"]["enabled"] is (precision == "bf16")


def test_the_old_name_of_bf16_gives_way_to_the_new_one() -> None:
    own = {"train_batch_size": 2, "bfloat16": {"enabled": True, "immediate_grad_update": True}}
    found = carried(own, make_setup(precision="fp32"))
    assert found["bf16"] == {"enabled": False, "immediate_grad_update": True}
    assert "bfloat16" not in found


def test_the_boolean_form_of_zero_becomes_a_block() -> None:
    own = {"train_batch_size": 2, "zero_optimization": True, "allgather_size": 100}
    zero = carried(own, make_setup(zero_stage=2))["zero_optimization"]
    assert (zero["stage"], zero["allgather_bucket_size"]) == (2, 100)


def test_a_knob_that_the_setup_does_not_have_leaves_the_users_value() -> None:
    zero = {"stage": 0, "reduce_bucket_size": 77, "overlap_comm": True}
    own = {"train_batch_size": 2, "zero_optimization": zero, "fp16": {"hysteresis": 3}}
    setup = make_setup(precision="fp16", zero_stage=0, bucket_bytes=None, overlap_comm=None)
    found = carried(own, setup)
    assert found["zero_optimization"] == zero
    assert found["fp16"]["hysteresis"] == 3


def test_a_parameter_dtype_follows_the_precision_that_deepspeed_demands_of_it() -> None:
    own = {"train_batch_size": 2, "data_types": {"param_dtype": "bf16", "grad_accum_dtype": "fp32"}}
    found = carried(own, make_setup(precision="fp16"))["data_types"]
    assert found == {"param_dtype": "fp16", "grad_accum_dtype": "fp32"}
    assert carried(own, make_setup())["data_types"]["param_dtype"] == "fp32"


def test_what_the_script_fills_in_stays_auto() -> None:
    own = json.loads((CONFIGS / "hf_auto.json").read_text(encoding="utf-8"))
    setup = make_setup(precision="bf16", zero_stage=3, bucket_bytes=None)
    found = carried(own, setup, auto=True)
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping"):
        assert found[key] == "auto"
    assert found["gradient_accumulation_steps"] == "auto"
    assert found["zero_optimization"]["reduce_bucket_size"] == "auto"
    assert found["optimizer"] == own["optimizer"]
    assert (found["fp16"]["enabled"], found["bf16"]["enabled"]) == (False, True)


def test_a_bucket_of_a_size_replaces_auto() -> None:
    own = json.loads((CONFIGS / "hf_auto.json").read_text(encoding="utf-8"))
    setup = make_setup(precision="bf16", grad_comm_dtype="bf16", bucket_bytes=1000)
    assert carried(own, setup, auto=True)["zero_optimization"]["reduce_bucket_size"] == 500


def test_without_a_script_nothing_that_deepspeed_reads_is_auto() -> None:
    own = json.loads((CONFIGS / "hf_auto.json").read_text(encoding="utf-8"))
    setup = make_setup(precision="bf16", zero_stage=3, bucket_bytes=None)
    found = carried(own, setup)
    assert "train_batch_size" not in found
    assert "gradient_clipping" not in found
    assert (found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]) == (2, 2)
    assert found["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
    }
    assert found["optimizer"] == own["optimizer"]  # the engine's side drops it


def understood(config: dict[str, Any]) -> Understood:
    found = understand_deepspeed(config)
    assert isinstance(found, Understood), found
    return found


def settled(config: dict[str, Any], **named: Any) -> dict[str, Any]:
    found = settle(understood(config), named)
    assert isinstance(found, dict), found
    return found


def contradictions(config: dict[str, Any], **named: Any) -> str:
    found = settle(understood(config), named)
    assert isinstance(found, Refused), found
    return "\n".join(found.reasons)


AUTO = {
    "train_micro_batch_size_per_gpu": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000},
}


@pytest.mark.parametrize(
    ("precision", "wire", "size"),
    [("bf16", "bf16", 2000), ("fp16", "fp16", 2000), ("fp32", "fp32", 4000)],
)
def test_what_hangs_on_an_open_precision_follows_once_it_is_named(
    precision: str, wire: str, size: int
) -> None:
    knobs = settled(AUTO, precision=precision)
    assert (knobs["grad_comm_dtype"], knobs["bucket_bytes"]) == (wire, size)
    assert knobs["overlap_comm"] is False


def test_an_open_precision_has_to_be_named() -> None:
    text = contradictions(AUTO)
    assert text == (
        'baseline.precision is needed: bf16.enabled is "auto": the script\'s flags decide'
    )


def test_an_open_stage_has_to_be_named_and_decides_the_overlap() -> None:
    config = {"train_batch_size": 2, "zero_optimization": {"stage": "auto"}}
    assert "baseline.zero_stage is needed" in contradictions(config, precision="fp32")
    knobs = settled(config, precision="fp32", zero_stage=3)
    assert (knobs["overlap_comm"], knobs["bucket_bytes"]) == (True, 2_000_000_000)


def test_a_knob_beside_the_file_may_not_contradict_it() -> None:
    text = contradictions(AUTO, precision="bf16", zero_stage=1)
    assert "baseline.zero_stage is 1, but the deepspeed file says 2" in text


def test_a_precision_that_the_file_switches_off_may_not_be_named() -> None:
    config = {**AUTO, "fp16": {"enabled": False}}
    assert "fp16.enabled is false" in contradictions(config, precision="fp16")
    assert settled(config, precision="bf16")["precision"] == "bf16"


def test_a_knob_beside_the_file_may_repeat_it_or_name_tf32_for_fp32() -> None:
    config = {"train_batch_size": 2, "zero_optimization": {"stage": 1}}
    assert settled(config, zero_stage=1, precision="tf32")["precision"] == "tf32"


@pytest.mark.parametrize("bucket", [None, 4000])
def test_a_bucket_that_is_auto_makes_a_baseline_without_one_or_with_the_named_size(
    bucket: int | None,
) -> None:
    config = copy.deepcopy(AUTO)
    config["zero_optimization"] = {"stage": 2, "reduce_bucket_size": "auto"}
    named = {} if bucket is None else {"bucket_bytes": bucket}
    knobs = settled(config, precision="bf16", **named)
    space = make_space({"bucket_bytes": (100, 200)}, make_context(), RESTRICTIONS)
    assert make_baseline(knobs, space).bucket_bytes == bucket


COUNTS = st.integers(1, 10**6)
SCALES = st.builds(
    LossScale,
    initial_power=st.integers(0, 32),
    window=COUNTS,
    hysteresis=COUNTS,
    minimum=st.just(1),
)
KNOBS = st.fixed_dictionaries(
    {
        "precision": st.sampled_from(("fp32", "bf16", "fp16")),
        "grad_comm_dtype": st.sampled_from(("fp32", "bf16", "fp16")),
        "zero_stage": st.integers(0, 3),
        "bucket_bytes": st.integers(1, 10**9).map(lambda size: size * 4),
        "overlap_comm": st.booleans(),
        "micro_batch": COUNTS,
        "gradient_accumulation": COUNTS,
        "loss_scale": SCALES,
    }
)
BLOCKS = st.fixed_dictionaries(
    {},
    optional={
        "fp16": st.sampled_from(({}, {"enabled": "auto"}, {"enabled": True, "hysteresis": 7})),
        "bf16": st.sampled_from(({}, {"enabled": "auto"}, {"enabled": False})),
        "zero_optimization": st.sampled_from(
            (False, True, {}, {"stage": 3, "overlap_comm": False, "reduce_bucket_size": 9})
        ),
        "train_batch_size": st.sampled_from((6, "auto")),
        "train_micro_batch_size_per_gpu": st.sampled_from((2, 3)),
        "communication_data_type": st.sampled_from(("fp16", "BF16", None)),
        "gradient_clipping": st.sampled_from((0.0, "auto")),
        "optimizer": st.just({"type": "Adam"}),
    },
)


def setup_of(knobs: dict[str, Any]) -> Setup:
    flat = dict(knobs)
    if flat["zero_stage"] == 0:
        flat |= {"bucket_bytes": None, "overlap_comm": None}
    scale = flat.pop("loss_scale") if flat["precision"] == "fp16" else None
    if scale is not None and flat["zero_stage"] == 0:
        scale = replace(scale, hysteresis=1)
    flat["loss_scale"] = scale
    return Setup(backend="deepspeed", activation_checkpointing=False, **flat)


@settings(deadline=None, max_examples=50)
@given(knobs=KNOBS, own=BLOCKS)
def test_a_setup_carried_through_a_users_file_is_read_back_as_it_was(
    knobs: dict[str, Any], own: dict[str, Any]
) -> None:
    setup = setup_of(knobs)
    found = carried(own, setup)
    read = understood(found)
    workload = replace(
        TINY, micro_batch=setup.micro_batch, gradient_accumulation=setup.gradient_accumulation
    )
    context = make_context(workload=workload, device="cuda")
    told = settle(read, {})
    assert isinstance(told, dict), told
    assert read.gradient_accumulation == setup.gradient_accumulation
    space = replace(make_space({}, context, ()), restrictions=())
    assert make_baseline(told, space) == setup


def test_the_files_of_the_tests_are_read_from_disk() -> None:
    for name in ("hf_auto.json", "plain.json"):
        assert isinstance(read_deepspeed(CONFIGS / name), Understood)
