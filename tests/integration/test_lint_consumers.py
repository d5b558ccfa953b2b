"""The lint against the real parsers: which keys matter, and that the tables say the same."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.configs import accelerate_keys, huggingface_keys
from autotune.configs import deepspeed_keys as deepspeed_table
from autotune.configs.accelerate_deepspeed import deepspeed_inert
from autotune.configs.accelerate_fsdp import fsdp_inert
from autotune.lint.liveness import CONDITIONAL, ELSEWHERE
from tests.lint_case import findings

FAULTLESS = Path(__file__).parents[1] / "configs" / "faultless"

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
perturb_deepspeed: Any = importlib.import_module("autotune.consumer.perturb_deepspeed")
perturb_accelerate: Any = importlib.import_module("autotune.consumer.perturb_accelerate")
perturb_huggingface: Any = importlib.import_module("autotune.consumer.perturb_huggingface")


@pytest.fixture(autouse=True)
def an_environment_and_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


USUAL: Mapping[str, Any] = {
    "communication_data_type": "bf16",
    "seq_parallel_communication_data_type": "bf16",
    "gradient_allreduce_op": "mean",
    "gradient_predivide_factor": 2.0,
    "steps_per_print": 10,
    "vocabulary_size": 64,
    "sequence_parallel_size": 1,
    "data_parallel_size": 1,
    "allgather_size": 100,
    "log_level": "info",
    "gradient_clipping": 0.5,
    "train_batch_size": 4,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "pipeline": {"stages": 2},
    "autotuning": {"metric": "latency"},
    "expert_parallel": {"enabled": False},
    "datastates_ckpt": {"x": 1},
    "inference": {"x": 1},
}
BLOCK_VALUES: Mapping[str, Any] = {
    "device": "cpu",
    "dtype": "bfloat16",
    "type": "AdamW",
    "params": {"lr": 1e-3},
    "tag_validation": "WARN",
    "output_path": "x",
    "job_name": "x",
    "parallel_write": {"pipeline_stage": True},
    "data_routing": {"enabled": True},
    "passes": ["z1"],
    "keep_in_fp32_modules": ["x"],
}
WITH: Mapping[str, dict[str, Any]] = {
    "optimizer": {"type": "AdamW"},
    "scheduler": {"type": "WarmupLR"},
    "data_efficiency": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "bf16": {"bf16_master_weights_and_grads": True},
    "bfloat16": {"bf16_master_weights_and_grads": True},
}
SILENT: Mapping[str, str] = {
    "allgather_size": "the table calls it dead, too, without zero_optimization: true",
    "data_parallel_size": ELSEWHERE["data_parallel_size"],
    "inference.x": ELSEWHERE["inference"],
    "vocabulary_size": ELSEWHERE["vocabulary_size"],
}
"""Keys that do nothing to ``DeepSpeedConfig``, and why that is known."""


GUESSES = (
    *(True, 1, 2, 0.5, "fp32", "mean", "cpu", "torch", "symmetric", "WARN"),
    *(["x"], {"x": 1}),
)


def guess(kind: Any) -> Any:
    """A value that a key of the table accepts."""
    if kind.inner and kind.closed:
        name = next(iter(kind.inner))
        return {name: guess(kind.inner[name])}
    for value in GUESSES:
        if kind.accepts(value):
            return value
    raise AssertionError(kind.words)


def table_files() -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """A small file for each key of DeepSpeed's table, and the path of the key."""
    files: list[tuple[dict[str, Any], tuple[str, ...]]] = []
    for key in sorted(deepspeed_table.TOP_LEVEL):
        if key in USUAL:
            below = list(USUAL[key])[:1] if isinstance(USUAL[key], dict) else []
            files.append(({"train_micro_batch_size_per_gpu": 2, key: USUAL[key]}, (key, *below)))
        elif key in deepspeed_table.SCALARS:
            value = guess(deepspeed_table.SCALARS[key])
            files.append(({"train_micro_batch_size_per_gpu": 2, key: value}, (key,)))
    blocks = {**deepspeed_table.VALIDATED, **deepspeed_table.READ}
    for block, kinds in blocks.items():
        for key, kind in kinds.items():
            if key == "use_gds":  # needs CUDA
                continue
            value = (
                BLOCK_VALUES[key]
                if key in BLOCK_VALUES and kind.accepts(BLOCK_VALUES[key])
                else guess(kind)
            )
            inner = {**WITH.get(block, {}), key: value}
            base = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}
            files.append(({**base, block: inner}, (block, key)))
    return files


def test_no_key_that_the_table_calls_live_is_dead_to_deepspeed() -> None:
    files = table_files()
    assert len(files) > 150
    silent = set()
    for config, path in files:
        found = perturb_deepspeed.read(Path(), config, [path])
        assert found["refused"] is None, (config, found)
        if found["inert"]:
            silent.add(".".join(path))
    assert silent == set(SILENT)


FSDP_VALUES: Mapping[str, Any] = {
    "fsdp_version": 2,
    "fsdp_sharding_strategy": "SHARD_GRAD_OP",
    "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP",
    "fsdp_min_num_params": 1000,
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_state_dict_type": "FULL_STATE_DICT",
    "fsdp_transformer_layer_cls_to_wrap": "Block",
    "fsdp_ignored_modules": "head",
    "fsdp_activation_checkpointing_offload": False,
    "fsdp_reshard_after_forward": "true",
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("key", sorted(accelerate_keys.FSDP))
def test_a_key_of_fsdp_is_dead_to_accelerate_where_the_table_says_so(
    key: str, version: int
) -> None:
    value = FSDP_VALUES.get(key, True)
    wrap = "SIZE_BASED_WRAP" if "min" in key else "TRANSFORMER_BASED_WRAP"
    values = {"fsdp_version": version, "fsdp_auto_wrap_policy": wrap, key: value}
    if key == "fsdp_version":
        values[key] = version
    config = {"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": values}
    found = perturb_accelerate.read(Path(), config, [("fsdp_config", key)])
    assert found["refused"] is None, found
    told = [item.key for item in fsdp_inert(values)]
    assert (found["inert"] == [["fsdp_config", key]]) is (told == [f"fsdp_config.{key}"])


ACCELERATE_VALUES: Mapping[str, Any] = {
    "zero_stage": 3,
    "offload_optimizer_device": "cpu",
    "offload_param_device": "cpu",
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 0.5,
    "zero3_init_flag": True,
    "zero3_save_16bit_model": True,
}


@pytest.mark.parametrize(
    "key", sorted({*accelerate_keys.DEEPSPEED, *accelerate_keys.DEEPSPEED_LOST})
)
def test_a_key_for_deepspeed_is_dead_to_accelerate_where_the_table_says_so(key: str) -> None:
    values = {"zero_stage": 3, key: ACCELERATE_VALUES.get(key, "x")}
    if key == "deepspeed_config_file":
        values = {key: str(FAULTLESS / "bf16_zero2.json")}
    config = {"distributed_type": "DEEPSPEED", "deepspeed_config": values}
    found = perturb_accelerate.read(Path(), config, [("deepspeed_config", key)])
    assert found["refused"] is None, found
    told = bool(list(deepspeed_inert(values)))
    assert bool(found["inert"]) is (told or (key in CONDITIONAL and key != "zero3_init_flag"))


HF_VALUES: Mapping[str, Any] = {
    "version": 2,
    "state_dict_type": "SHARDED_STATE_DICT",
    "auto_wrap_policy": "NO_WRAP",
    "min_num_params": 100,
    "transformer_layer_cls_to_wrap": ["Block"],
    "backward_prefetch": "backward_pre",
    "xla_fsdp_settings": {"compute_dtype": "bfloat16"},
}
WITH_XLA = ("xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "key",
    sorted(
        {
            *(huggingface_keys.FSDP | huggingface_keys.FSDP1) - {*WITH_XLA},
            *huggingface_keys.FSDP_DROPPED,
            "nonsense",
        }
    ),
)
def test_a_key_of_fsdp_config_is_dead_to_transformers_where_the_lint_says_so(
    key: str, version: int
) -> None:
    wrap = {"auto_wrap_policy": "SIZE_BASED_WRAP"} if key == "min_num_params" else {}
    values = {"version": version, **wrap, key: HF_VALUES.get(key, True)}
    if key == "reshard_after_forward" and version == 1:
        values[key] = "shard_grad_op"
    values["version"] = version
    told = {item.key for item in findings("fsdp", json.dumps(values)) if item.inert}
    found = perturb_huggingface.read_fragment(Path(), values, [(key,)])
    assert found["refused"] is None, found
    assert bool(found["inert"]) is ((key,) in told)


def test_the_arguments_are_those_of_the_installed_transformers() -> None:
    transformers: Any = importlib.import_module("transformers")
    listed = dataclasses.fields(transformers.TrainingArguments)
    fields = {field.name: str(field.type) for field in listed}
    assert set(fields) == huggingface_keys.ARGUMENTS
    assert not set(fields) & set(huggingface_keys.REMOVED)
    for name, kind in fields.items():
        if name in huggingface_keys.BOOLS:
            assert kind.startswith(("bool", "<class 'bool'")) or "bool | None" in kind, (name, kind)
        if name in huggingface_keys.NUMBERS:
            assert "int" in kind or "float" in kind, (name, kind)


def test_transformers_reads_these_keys_of_fsdp_config_and_no_others() -> None:
    transformers: Any = importlib.import_module("transformers")
    source = inspect.getsource(transformers.TrainingArguments._process_fsdp_args)
    quoted = set(re.findall(r"self\.fsdp_config(?:\.get\(|\.setdefault\(|\[)\s*\"(\w+)\"", source))
    quoted |= set(re.findall(r'"(\w+)" in self\.fsdp_config', source))
    assert quoted == huggingface_keys.FSDP | huggingface_keys.FSDP1


@pytest.mark.parametrize("fsdp", ["shard_grad_op", "full_shard"])
def test_version_1_of_transformers_shards_fully_whatever_it_says(fsdp: str) -> None:
    with perturb_huggingface.capable(), perturb_huggingface.as_on_a_gpu():
        plugin = perturb_huggingface.observe({"fsdp": fsdp, "fsdp_config": {"version": 1}})[
            "plugin"
        ]
    assert "FULL_SHARD" in plugin["sharding_strategy"]


def test_deepspeed_launched_by_accelerate_is_told_nothing_of_dynamo() -> None:
    config = {"distributed_type": "DEEPSPEED", "dynamo_config": {"dynamo_backend": "INDUCTOR"}}
    key = ("dynamo_config", "dynamo_backend")
    assert perturb_accelerate.read(Path(), config, [key])["inert"] == [list(key)]
    config["distributed_type"] = "MULTI_GPU"
    assert perturb_accelerate.read(Path(), config, [key])["inert"] == []


def test_a_number_as_text_reaches_the_arguments_as_text(tmp_path: Path) -> None:
    transformers: Any = importlib.import_module("transformers")
    path = tmp_path / "args.yaml"
    path.write_text('output_dir: x\nlearning_rate: 2e-5\nfp16: "false"\nuse_cpu: true\n')
    with perturb_huggingface.capable():
        (args,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_yaml_file(
            path
        )
    assert args.learning_rate == "2e-5"
    assert args.mixed_precision == "fp16"


@pytest.mark.parametrize("name", sorted(huggingface_keys.REMOVED))
def test_an_argument_that_is_gone_stops_the_parser(name: str, tmp_path: Path) -> None:
    transformers: Any = importlib.import_module("transformers")
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    with pytest.raises(ValueError, match=name):
        parser.parse_dict({"output_dir": "x", name: 1})
