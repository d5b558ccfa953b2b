from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.configs import Refused, Understood, read_accelerate
from autotune.configs.accelerate import understand_accelerate

CONFIGS = Path(__file__).parents[1] / "configs"
FSDP = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}


def understood(config: dict[str, Any], folder: Path = CONFIGS) -> Understood:
    found = understand_accelerate(config, folder)
    assert isinstance(found, Understood), found
    return found


def reasons(config: dict[str, Any], folder: Path = CONFIGS) -> str:
    found = understand_accelerate(config, folder)
    assert isinstance(found, Refused), found
    return "\n".join(found.reasons)


def fsdp(mixed: str | None = "bf16", **keys: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"distributed_type": "FSDP", "fsdp_config": {**FSDP, **keys}}
    return config if mixed is None else {**config, "mixed_precision": mixed}


def deepspeed(mixed: str | None = "bf16", **keys: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"distributed_type": "DEEPSPEED", "deepspeed_config": keys}
    return config if mixed is None else {**config, "mixed_precision": mixed}


@pytest.mark.parametrize(
    ("mixed", "precision"), [("no", "fp32"), ("bf16", "bf16"), ("fp16", "fp16")]
)
def test_fsdp2_reduces_in_the_dtype_of_the_precision(mixed: str, precision: str) -> None:
    knobs = understood(fsdp(mixed)).knobs
    assert (knobs["backend"], knobs["precision"]) == ("fsdp", precision)
    assert knobs["grad_comm_dtype"] == precision
    assert (knobs.get("loss_scale.window") == 2000) is (precision == "fp16")


@pytest.mark.parametrize(
    ("mixed", "precision"), [("no", "fp32"), ("bf16", "bf16"), ("fp16", "fp16")]
)
@pytest.mark.parametrize("kind", ["MULTI_GPU", "MULTI_CPU"])
def test_ddp_reduces_fp32_gradients_in_buckets_of_25_mib(
    kind: str, mixed: str, precision: str
) -> None:
    knobs = understood({"distributed_type": kind, "mixed_precision": mixed}).knobs
    assert (knobs["backend"], knobs["zero_stage"]) == ("ddp", 0)
    assert (knobs["precision"], knobs["grad_comm_dtype"]) == (precision, "fp32")
    assert knobs["bucket_bytes"] == 26_214_400


@pytest.mark.parametrize(
    ("value", "stage"), [(True, 3), (False, 2), ("true", 3), ("false", 2), (None, 3)]
)
def test_resharding_after_the_forward_is_stage_3(value: Any, stage: int) -> None:
    keys = {} if value is None else {"fsdp_reshard_after_forward": value}
    assert understood(fsdp(**keys)).knobs["zero_stage"] == stage


def test_a_key_without_its_prefix_is_read_as_accelerate_reads_it() -> None:
    config = {"version": 2, "reshard_after_forward": False, "activation_checkpointing": True}
    found = understood({"distributed_type": "FSDP", "fsdp_config": config})
    assert (found.knobs["zero_stage"], found.knobs["activation_checkpointing"]) == (2, True)
    assert found.inert == ()


@pytest.mark.parametrize(
    "config",
    [fsdp(None), {"distributed_type": "MULTI_GPU"}, deepspeed(None, zero_stage=2)],
    ids=["fsdp", "ddp", "deepspeed"],
)
def test_a_precision_that_is_not_said_is_open(config: dict[str, Any]) -> None:
    found = understood(config)
    assert "precision" not in found.knobs
    assert "script" in found.open["precision"]


def test_no_is_fp32_unless_the_script_has_a_flag_of_its_own() -> None:
    found = understood(fsdp("no"))
    assert found.knobs["precision"] == "fp32"
    assert any("--bf16" in note for note in found.notes)


def test_the_whole_file_is_carried() -> None:
    found = read_accelerate(CONFIGS / "fsdp2.yaml")
    assert isinstance(found, Understood)
    assert found.kind == "accelerate"
    assert found.config["num_processes"] == 8
    assert found.config["downcast_bf16"] == "no"
    assert found.deepspeed is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fsdp_sharding_strategy", "HYBRID_SHARD"),
        ("fsdp_backward_prefetch", "BACKWARD_PRE"),
        ("fsdp_forward_prefetch", True),
        ("fsdp_use_orig_params", True),
        ("fsdp_backward_prefetch_policy", "BACKWARD_PRE"),
        ("fsdp_cpu_offload", True),
        ("fsdp_reduce_dtype", "fp32"),
        ("reshard_after_foward", True),
    ],
)
def test_what_version_2_reads_over_is_inert(key: str, value: Any) -> None:
    (inert,) = understood(fsdp(**{key: value})).inert
    assert inert.key == f"fsdp_config.{key}"
    assert inert.why


def test_an_old_name_beside_the_new_one_is_as_dead_as_alone() -> None:
    both = {"fsdp_backward_prefetch": "BACKWARD_PRE", "fsdp_backward_prefetch_policy": "X"}
    config = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 1, **both}}
    found = understand_accelerate(config, CONFIGS)
    assert [item.key for item in found.inert] == ["fsdp_config.fsdp_backward_prefetch_policy"]


def test_version_1_is_refused_with_the_way_out_and_its_dead_keys() -> None:
    keys = {"fsdp_reshard_after_forward": "SHARD_GRAD_OP", "fsdp_sharding_strategy": "FULL_SHARD"}
    found = understand_accelerate({"distributed_type": "FSDP", "fsdp_config": keys}, CONFIGS)
    assert isinstance(found, Refused)
    assert "accelerate to-fsdp2" in found.reasons[0]
    assert [item.key for item in found.inert] == ["fsdp_config.fsdp_reshard_after_forward"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"distributed_type": "NO"}, ["a single process", "MULTI_GPU"]),
        ({"distributed_type": False}, ["a single process"]),
        ({"distributed_type": "MEGATRON_LM"}, ["MEGATRON_LM", "DEEPSPEED, FSDP"]),
        ({"distributed_type": "XLA"}, ["XLA"]),
        ({"distributed_type": "MULTI_GPU", "mixed_precision": "fp8"}, ["fp8", "no, bf16 and fp16"]),
        ({"distributed_type": "MULTI_GPU", "mixed_precision": False}, ["without quotes", '"no"']),
        ({"distributed_type": "MULTI_GPU", "mixed_precision": "bf15"}, ['"bf15"']),
        (
            {"distributed_type": "MULTI_GPU", "mixd_precision": "no"},
            ["mixd_precision", "did you mean mixed_precision?"],
        ),
        (
            {"distributed_type": "MULTI_GPU", "compute_environment": "AMAZON_SAGEMAKER"},
            ["AMAZON_SAGEMAKER"],
        ),
        (
            {**fsdp(), "parallelism_config": {"parallelism_config_tp_size": 2}},
            ["parallelism_config_tp_size is 2", "share their samples"],
        ),
        (
            {**fsdp(), "parallelism_config": {"parallelism_config_dp_replicate_size": 2}},
            ["parallelism_config_dp_replicate_size is 2", "HSDP"],
        ),
        (fsdp(fsdp_version=3), ["fsdp_version is 3", "version 2"]),
        (fsdp(fsdp_reshard_after_forward="FULL_SHARD"), ["FULL_SHARD", "true or false"]),
        (fsdp(fsdp_auto_wrap_policy="LAYER"), ["LAYER", "SIZE_BASED_WRAP"]),
        (fsdp(fsdp_state_dict_type="LOCAL_STATE_DICT"), ["LOCAL_STATE_DICT"]),
        (fsdp(fsdp_sync_module_states=False), ["fsdp_sync_module_states is false"]),
        (
            fsdp(fsdp_activation_checkpointing_offload=True),
            ["needs fsdp_activation_checkpointing: true"],
        ),
        (deepspeed(zero_stage=4), ["zero_stage is 4", "0 to 3"]),
        (deepspeed(zero_stage="auto"), ['zero_stage is "auto"']),
        (deepspeed(gradient_accumulation_steps=0), ["gradient_accumulation_steps is 0"]),
        (deepspeed(gradient_clipping="x"), ['gradient_clipping is "x"']),
        (deepspeed(offload_param_device="disk"), ["disk", "none, cpu, nvme"]),
        ({"train_batch_size": 1}, ["baseline.deepspeed_config"]),
        ({"mixed_precision": "bf16"}, ["distributed_type is absent"]),
    ],
)
def test_what_cannot_be_a_baseline_is_refused_by_key_value_and_reason(
    config: dict[str, Any], words: list[str]
) -> None:
    text = reasons(config)
    assert all(word in text for word in words), text


def test_sizes_of_one_are_carried() -> None:
    sizes = {"parallelism_config_dp_replicate_size": 1, "parallelism_config_dp_shard_size": 8}
    found = understood({**fsdp(), "parallelism_config": sizes})
    assert found.config["parallelism_config"] == sizes


def test_accelerates_own_keys_make_a_deepspeed_configuration() -> None:
    found = read_accelerate(CONFIGS / "inline.yaml")
    assert isinstance(found, Understood)
    assert found.gradient_accumulation == 4
    assert found.knobs["zero_stage"] == 3
    assert found.knobs["loss_scale.initial_power"] == 16
    assert found.deepspeed is not None
    assert found.deepspeed["fp16"] == {"enabled": True, "auto_cast": True}
    assert found.deepspeed["zero_optimization"]["offload_optimizer"]["device"] == "cpu"


def test_absent_keys_take_accelerates_own_defaults() -> None:
    found = understood(deepspeed())
    assert found.knobs["zero_stage"] == 2
    assert found.knobs["bucket_bytes"] == 1_000_000_000
    assert "gradient_accumulation" in found.open


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("offload_optimizer_nvme_path", "hand it to the processes"),
        ("seq_parallel_communication_data_type", "does not read it"),
        ("zero_stge", "did you mean zero_stage?"),
    ],
)
def test_a_key_for_deepspeed_that_nobody_reads_is_inert(key: str, word: str) -> None:
    (inert,) = understood(deepspeed(**{key: "x"})).inert
    assert inert.key == f"deepspeed_config.{key}"
    assert word in inert.why


def test_clipping_by_0_is_noted_as_what_it_does() -> None:
    (note,) = understood(deepspeed(gradient_clipping=0.0)).notes
    assert "clips at 1.0" in note


def test_a_deepspeed_file_is_looked_for_from_the_given_folder(tmp_path: Path) -> None:
    found = read_accelerate(CONFIGS / "named.yaml", CONFIGS)
    assert isinstance(found, Understood)
    assert found.knobs["loss_scale.hysteresis"] == 4
    assert found.deepspeed is not None
    assert found.deepspeed["optimizer"]["type"] == "AdamW"
    assert found.config["deepspeed_config"]["deepspeed_config_file"] == "hf_auto.json"
    missing = read_accelerate(CONFIGS / "named.yaml", tmp_path)
    assert isinstance(missing, Refused)
    assert str(tmp_path / "hf_auto.json") in missing.reasons[0]


def named(tmp_path: Path, text: str, **keys: Any) -> dict[str, Any]:
    (tmp_path / "ds.json").write_text(text, encoding="utf-8")
    return deepspeed(None, deepspeed_config_file="ds.json", **keys)


ZERO = '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}'


@pytest.mark.parametrize(
    ("text", "keys", "words"),
    [
        (ZERO + "}", {"zero_stage": 1}, ["deepspeed_config.zero_stage", "accelerate refuses"]),
        (ZERO + ", }", {}, ["no strict JSON"]),
        ('{"train_batch_size": 2}', {}, ["no zero_optimization"]),
        (ZERO + ', "amp": {}}', {}, ["deepspeed_config_file ds.json: amp"]),
        ("{", {}, ["deepspeed_config_file ds.json: line 1"]),
    ],
)
def test_a_deepspeed_file_that_accelerate_refuses_is_refused(
    tmp_path: Path, text: str, keys: dict[str, Any], words: list[str]
) -> None:
    found = reasons(named(tmp_path, text, **keys), tmp_path)
    assert all(word in found for word in words), found


def test_mixed_precision_beside_a_deepspeed_file_is_refused(tmp_path: Path) -> None:
    config = {**named(tmp_path, ZERO + "}"), "mixed_precision": "no"}
    assert 'mixed_precision is "no" beside deepspeed_config_file' in reasons(config, tmp_path)


def test_a_deepspeed_file_without_accumulation_accumulates_once(tmp_path: Path) -> None:
    found = understood(named(tmp_path, ZERO + "}"), tmp_path)
    assert found.gradient_accumulation == 1
    assert "precision" in found.open


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"enable_cpu_affinity": True}, "enable_cpu_affinity"),
        ({"rdzv_backend": "c10d"}, "rdzv_backend"),
        ({"deepspeed_config": {"zero_stage": 3}}, "deepspeed_config"),
    ],
)
def test_a_key_that_accelerate_never_passes_on_is_inert(keys: dict[str, Any], key: str) -> None:
    (inert,) = understood({**fsdp(), **keys}).inert
    assert inert.key == key


def test_what_autotunes_own_trainer_does_not_do_is_told() -> None:
    config = {**fsdp(fsdp_offload_params=True), "dynamo_config": {"dynamo_backend": "INDUCTOR"}}
    keys = [item.key for item in understood(config).script_only]
    assert keys == ["fsdp_config.fsdp_offload_params", "dynamo_config"]


def test_old_names_are_noted() -> None:
    found = understood({"distributed_type": "MULTI_GPU", "fp16": True, "dynamo_backend": "NO"})
    assert found.knobs["precision"] == "fp16"
    assert len(found.notes) == 2


def test_json_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.json"
    path.write_text(json.dumps(fsdp()), encoding="utf-8")
    assert isinstance(read_accelerate(path), Understood)
    path.write_text(json.dumps(fsdp())[:-1] + ",}", encoding="utf-8")
    assert isinstance(read_accelerate(path), Refused)
