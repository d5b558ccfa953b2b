from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import nodes
from jinja2.sandbox import SandboxedEnvironment

from autotune.backends.accelerate import (
    RESTRICTIONS,
    TEMPLATE,
    accelerate_variables,
    unsaid,
)
from autotune.errors import UsageError
from autotune.render import parse_yaml_text, render, shipped_templates
from autotune.setup import LossScale, Setup
from tests.build import make_context, make_setup

DEEPSPEED = make_setup(precision="bf16", grad_comm_dtype="fp32")
FSDP = make_setup(backend="fsdp", precision="bf16", grad_comm_dtype="bf16")
DDP = make_setup(backend="ddp", precision="bf16", zero_stage=0, bucket_bytes=26_214_400)
OWN = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "mixed_precision": "fp16",
    "downcast_bf16": "no",
    "num_processes": 8,
    "main_process_ip": "10.0.0.1",
    "dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_mode": None},
    "fsdp_config": {"state_dict_type": "FULL_STATE_DICT", "fsdp_offload_params": True},
    "deepspeed_config": {
        "zero_stage": 3,
        "zero3_init_flag": True,
        "gradient_accumulation_steps": 4,
        "offload_param_device": "cpu",
        "deepspeed_moe_layer_cls_names": "Block",
    },
}


def text(setup: Setup, own: dict[str, Any] | None = None) -> dict[str, Any]:
    file = "ds_config.json" if setup.backend == "deepspeed" else None
    variables = accelerate_variables(setup, deepspeed_file=file, carried=own)
    found: dict[str, Any] = yaml.safe_load(render(TEMPLATE, variables, None))
    return found


def test_a_deepspeed_setup_names_its_file_and_nothing_that_is_said_there() -> None:
    assert text(DEEPSPEED) == {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": "ds_config.json"},
    }


def test_an_fsdp_setup_says_its_version_and_its_knobs() -> None:
    assert text(FSDP) == {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_offload_params": False,
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": True,
            "fsdp_activation_checkpointing": False,
        },
    }


def test_a_ddp_setup_says_its_precision() -> None:
    assert text(DDP) == {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"}


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_no_is_text(precision: str) -> None:
    setup = make_setup(backend="fsdp", precision=precision)
    assert text(setup)["mixed_precision"] == "no"


def test_the_users_other_keys_stay() -> None:
    kept = {"compute_environment", "downcast_bf16", "num_processes", "main_process_ip"}
    for setup in (DEEPSPEED, FSDP, DDP):
        found = text(setup, OWN)
        assert {key: found[key] for key in kept} == {key: OWN[key] for key in kept}
        assert found["dynamo_config"] == OWN["dynamo_config"]


def test_keys_that_deepspeeds_file_says_too_go_and_the_others_stay() -> None:
    found = text(DEEPSPEED, OWN)
    assert found["deepspeed_config"] == {
        "zero3_init_flag": True,
        "deepspeed_moe_layer_cls_names": "Block",
        "deepspeed_config_file": "ds_config.json",
    }
    assert "mixed_precision" not in found
    assert "fsdp_config" not in found


def test_the_users_own_fsdp_keys_stay_but_for_the_knobs() -> None:
    own = {**OWN, "fsdp_config": {**OWN["fsdp_config"], "reshard_after_forward": False}}  # type: ignore[dict-item]
    found = text(FSDP, own)["fsdp_config"]
    assert found["fsdp_state_dict_type"] == "FULL_STATE_DICT"
    assert found["fsdp_offload_params"] is True
    assert found["fsdp_reshard_after_forward"] is True
    assert "deepspeed_config" not in text(FSDP, own)


def test_ddp_on_cpus_stays_on_cpus() -> None:
    assert text(DDP, {"distributed_type": "MULTI_CPU"})["distributed_type"] == "MULTI_CPU"


def test_no_topology_is_written_that_the_user_did_not_write() -> None:
    for setup in (DEEPSPEED, FSDP, DDP):
        assert not {"num_processes", "num_machines", "machine_rank"} & set(text(setup))


@pytest.mark.parametrize(
    ("setup", "knobs"),
    [
        (DEEPSPEED, set()),
        (make_setup(precision="tf32", activation_checkpointing=True), {"precision", "activation"}),
        (FSDP, {"micro_batch", "gradient_accumulation"}),
        (DDP, {"micro_batch", "gradient_accumulation"}),
        (
            make_setup(backend="fsdp", precision="bf16", grad_comm_dtype="fp32"),
            {"grad_comm_dtype", "micro_batch", "gradient_accumulation"},
        ),
        (
            make_setup(
                backend="ddp",
                precision="fp16",
                zero_stage=0,
                grad_comm_dtype="fp16",
                bucket_bytes=50 * 2**20,
                activation_checkpointing=True,
                loss_scale=LossScale(initial_power=10, window=2000, hysteresis=1, minimum=0),
            ),
            {
                *("activation", "grad_comm_dtype", "bucket_bytes", "loss_scale"),
                *("micro_batch", "gradient_accumulation"),
            },
        ),
    ],
    ids=lambda value: value.key if isinstance(value, Setup) else "",
)
def test_what_the_file_cannot_say_is_told(setup: Setup, knobs: set[str]) -> None:
    told = dict(unsaid(setup))
    assert {knob.replace("activation_checkpointing", "activation") for knob in told} == knobs
    assert all(told.values())


def test_advice_holds_the_values_of_the_setup() -> None:
    setup = make_setup(
        backend="ddp",
        precision="fp16",
        zero_stage=0,
        bucket_bytes=50 * 2**20,
        loss_scale=LossScale(initial_power=10, window=500, hysteresis=1, minimum=0),
    )
    told = dict(unsaid(setup))
    assert "bucket_cap_mb=50" in told["bucket_bytes"]
    assert "2.0**10" in told["loss_scale"]
    assert "growth_interval=500" in told["loss_scale"]


@pytest.mark.parametrize(
    ("setup", "refused"),
    [
        (DEEPSPEED, False),
        (FSDP, False),
        (DDP, False),
        (make_setup(backend="fsdp", precision="bf16", grad_comm_dtype="fp32"), True),
        (make_setup(backend="ddp", zero_stage=0, bucket_bytes=1), True),
    ],
)
def test_a_script_that_reads_this_file_alone_cannot_be_told_more(
    setup: Setup, refused: bool
) -> None:
    (restriction,) = RESTRICTIONS
    assert restriction.refuses(setup, make_context()) is refused


HOSTILE: tuple[Any, ...] = (
    *("no", "12:30", "1e-5", "null", "", " ", "- x", "a: b", "# x", "'", '"', "a\nb", "x\ty"),
    *("é \u2028 \U0001f600", "\0", "{{ 7 * 7 }}", "%YAML", "&a", "*a", "!!int 1", "a" * 300),
    *(None, True, 0, 10**30, 1e-5, 1e16, -0.0, 0.1),
    *([1, "no", None], {"a": {"b": "c\nd", "no": "x, y"}}, [], {}),
)


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_a_hostile_value_comes_out_of_yaml_as_it_went_in(tmp_path: Path, value: Any) -> None:
    (tmp_path / "some.yaml.j2").write_text("{{ value | yaml }}:\n  - {{ value | yaml }}\n")
    (tmp_path / "one.yaml.j2").write_text("key: {{ value | yaml }}\n")
    assert yaml.safe_load(render("one.yaml.j2", {"value": value}, tmp_path)) == {"key": value}
    if isinstance(value, str):
        found = yaml.safe_load(render("some.yaml.j2", {"value": value}, tmp_path))
        assert found == {value: [value]}


@pytest.mark.parametrize(
    "value",
    [float("nan"), {1, 2}, object(), (1,), {"a": {1}}],
    ids=["nan", "a set", "an object", "a tuple", "a set inside"],
)
def test_a_value_that_yaml_cannot_hold_is_refused(tmp_path: Path, value: object) -> None:
    (tmp_path / "some.yaml.j2").write_text("key: {{ value | yaml }}\n")
    with pytest.raises(UsageError, match="cannot be written as YAML"):
        render("some.yaml.j2", {"value": value}, tmp_path)


@pytest.mark.parametrize("wrong", ["a: 1\na: 2\n", "a: [1\n", "\ta: 1\n", "a: b: c\n"])
def test_text_that_is_not_yaml_is_refused(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(UsageError, match="not YAML"):
        parse_yaml_text(wrong, "here")
    (tmp_path / "some.yaml.j2").write_text(wrong)
    with pytest.raises(UsageError, match=r"some\.yaml\.j2 .*not YAML"):
        render("some.yaml.j2", {}, tmp_path)


def test_every_value_of_the_template_is_quoted() -> None:
    environment = SandboxedEnvironment()
    environment.filters["yaml"] = str
    tree = environment.parse((shipped_templates() / TEMPLATE).read_text(encoding="utf-8"))
    printed = [part for output in tree.find_all(nodes.Output) for part in output.nodes]
    values = [part for part in printed if not isinstance(part, nodes.TemplateData)]
    assert values
    assert all(isinstance(value, nodes.Filter) and value.name == "yaml" for value in values)
