from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.configs import Refused, Understood, read_deepspeed
from autotune.configs.deepspeed import understand_deepspeed

CONFIGS = Path(__file__).parents[1] / "configs"
BATCH = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}
AUTO = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}


def understood(config: dict[str, Any], *, hf: bool = False) -> Understood:
    found = understand_deepspeed(config, hf=hf)
    assert isinstance(found, Understood), found
    return found


def reasons(config: dict[str, Any]) -> str:
    found = understand_deepspeed(config)
    assert isinstance(found, Refused), found
    return "\n".join(found.reasons)


def written(tmp_path: Path, text: str, name: str = "ds.json") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    found = read_deepspeed(path)
    assert isinstance(found, Refused), found
    return "\n".join(found.reasons)


def test_a_file_with_nothing_but_batches_is_fp32_without_zero() -> None:
    found = understood(BATCH)
    assert found.knobs == {
        "backend": "deepspeed",
        "precision": "fp32",
        "grad_comm_dtype": "fp32",
        "zero_stage": 0,
        "micro_batch": 2,
    }
    assert (found.gradient_accumulation, found.auto, found.open) == (3, False, {})
    assert found.deepspeed == BATCH


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(("stage", "overlap"), [(1, False), (2, False), (3, True)])
def test_absent_keys_take_deepspeeds_own_defaults(
    precision: str, stage: int, overlap: bool
) -> None:
    config = {**BATCH, precision: {"enabled": True}, "zero_optimization": {"stage": stage}}
    knobs = understood(config).knobs
    assert (knobs["precision"], knobs["grad_comm_dtype"]) == (precision, precision)
    assert knobs["bucket_bytes"] == 1_000_000_000  # 5e8 elements of 2 bytes
    assert knobs["overlap_comm"] is overlap
    scale = {name: value for name, value in knobs.items() if name.startswith("loss_scale.")}
    assert list(scale.values()) == ([16, 1000, 2, 1] if precision == "fp16" else [])


def test_a_bucket_is_counted_in_bytes_of_the_dtype_on_the_wire() -> None:
    zero = {"stage": 2, "reduce_bucket_size": 1e6}
    config = {**BATCH, "bf16": {"enabled": True}, "zero_optimization": zero}
    assert understood(config).knobs["bucket_bytes"] == 2_000_000
    wide = understood({**config, "communication_data_type": "FP32"})
    assert (wide.knobs["grad_comm_dtype"], wide.knobs["bucket_bytes"]) == ("fp32", 4_000_000)
    assert wide.bucket_elements == 1_000_000


def test_values_are_read_as_pydantic_reads_them() -> None:
    zero = {"stage": "3", "reduce_bucket_size": "2000", "overlap_comm": "no"}
    fp16 = {"enabled": "yes", "initial_scale_power": 12.0, "min_loss_scale": "4"}
    knobs = understood({**BATCH, "fp16": fp16, "zero_optimization": zero}).knobs
    assert (knobs["zero_stage"], knobs["overlap_comm"], knobs["bucket_bytes"]) == (3, False, 4000)
    assert (knobs["loss_scale.initial_power"], knobs["loss_scale.minimum"]) == (12, 4)


def test_stage_0_has_no_bucket_no_overlap_and_no_hysteresis() -> None:
    zero = {"stage": 0, "reduce_bucket_size": 1000, "overlap_comm": True}
    config = {**BATCH, "fp16": {"enabled": True, "hysteresis": 3}, "zero_optimization": zero}
    found = understood(config)
    absent = {"bucket_bytes", "overlap_comm", "loss_scale.hysteresis"}
    assert absent.isdisjoint(found.knobs)
    assert [item.key for item in found.inert] == ["fp16.hysteresis"]
    assert any("fp16 at ZeRO stage 0" in note for note in found.notes)


@pytest.mark.parametrize(
    ("blocks", "precision"),
    [
        ({"bf16": {"enabled": True}, "fp16": {"enabled": "auto"}}, "bf16"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": "auto"}}, "fp16"),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": False}}, "fp32"),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": "auto"}}, None),
        ({"bf16": {"enabled": "auto"}}, None),
        ({}, None),
    ],
)
def test_flags_of_the_script_decide_a_precision_that_is_auto(
    blocks: dict[str, Any], precision: str | None
) -> None:
    found = understood({**AUTO, **blocks})
    assert found.knobs.get("precision") == precision
    assert ("precision" in found.open) is (precision is None)
    assert ("grad_comm_dtype" in found.knobs) is (precision is not None)


def test_a_file_without_auto_is_read_as_deepspeed_alone_reads_it() -> None:
    assert understood(BATCH).knobs["precision"] == "fp32"
    assert "precision" in understood(BATCH, hf=True).open


def test_the_reason_names_the_keys_that_are_auto() -> None:
    both = understood({**AUTO, "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}})
    assert both.open["precision"] == (
        'fp16.enabled and bf16.enabled are "auto": the script\'s flags decide'
    )
    assert 'train_micro_batch_size_per_gpu is "auto"' in both.open["micro_batch"]


def test_a_bucket_that_is_auto_has_no_size() -> None:
    zero = {"stage": 3, "reduce_bucket_size": "auto"}
    found = understood({**AUTO, "bf16": {"enabled": True}, "zero_optimization": zero})
    assert found.knobs["bucket_bytes"] is None
    assert found.bucket_elements is None


def test_a_stage_that_is_auto_is_open() -> None:
    zero = {"stage": "auto"}
    found = understood({**AUTO, "bf16": {"enabled": True}, "zero_optimization": zero})
    assert "zero_stage" not in found.knobs
    assert "accelerate makes 2 of it" in found.open["zero_stage"]


@pytest.mark.parametrize(
    ("batch", "micro", "accumulation"),
    [
        ({"train_batch_size": 8}, None, 1),
        ({"train_batch_size": 8, "gradient_accumulation_steps": 2}, None, 2),
        ({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}, 2, None),
        ({"train_micro_batch_size_per_gpu": 2}, 2, 1),
        ({"train_micro_batch_size_per_gpu": 2.0, "train_batch_size": "auto"}, 2, 1),
    ],
)
def test_batches_that_follow_from_the_ranks_are_open(
    batch: dict[str, Any], micro: int | None, accumulation: int | None
) -> None:
    found = understood(batch)
    assert found.knobs.get("micro_batch") == micro
    assert found.gradient_accumulation == accumulation
    assert ("micro_batch" in found.open) is (micro is None)
    assert ("gradient_accumulation" in found.open) is (accumulation is None)


@pytest.mark.parametrize(
    ("config", "key", "hint"),
    [
        ({"gradient_cliping": 1.0}, "gradient_cliping", "did you mean gradient_clipping?"),
        ({"loss_scale_window": 500}, "loss_scale_window", "inside fp16 only"),
        ({"reduce_bucket_size": 5}, "reduce_bucket_size", "inside zero_optimization only"),
        ({"grad_accum_dtype": "fp32"}, "grad_accum_dtype", "inside data_types only"),
        ({"fp32_allreduce": True}, "fp32_allreduce", "communication_data_type"),
        ({"monitor_config": {}}, "monitor_config", "tensorboard"),
        ({"something_else": 1}, "something_else", "no such key"),
        ({"data_types": {"grad_dtype": "fp32"}}, "data_types.grad_dtype", "no such key"),
        ({"torch_autocast": {"enable": True}}, "torch_autocast.enable", "did you mean enabled?"),
        ({"timers": {"step": {}}}, "timers.step", "no such key"),
    ],
)
def test_a_key_that_deepspeed_reads_over_is_named_with_what_was_meant(
    config: dict[str, Any], key: str, hint: str
) -> None:
    (inert,) = understood({**BATCH, **config}).inert
    assert inert.key == key
    assert hint in inert.why


def test_an_authors_comment_is_no_dead_key() -> None:
    assert understood({**BATCH, "_comment": "mine", "//": "too"}).inert == ()


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"bfloat16": {"enabled": True}}, "bfloat16 is the old name"),
        ({"zero_optimization": True}, "reads it as stage 1"),
        ({"zero_optimization": {"stage": 1, "cpu_offload": True}}, "old name of offload_optimizer"),
        ({"wall_clock_breakdown": True}, "synchronises in every micro-batch"),
        ({"comms_logger": {"enabled": False}}, "by its mere key"),
        ({"flops_profiler": {"enabled": True}}, "flops_profiler is on"),
        ({"zero_optimization": {"zero_quantized_gradients": True}}, "nothing on one node"),
        ({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}}, "max_grad_norm"),
    ],
)
def test_what_is_worth_to_know_is_noted(config: dict[str, Any], word: str) -> None:
    notes = understood({**BATCH, "gradient_clipping": 1, **config}).notes
    assert len(notes) == 1
    assert word in notes[0]


def test_old_spellings_are_understood() -> None:
    config = {**BATCH, "bfloat16": {"enabled": True}, "zero_optimization": True}
    knobs = understood(config).knobs
    assert (knobs["precision"], knobs["zero_stage"], knobs["overlap_comm"]) == ("bf16", 1, False)


def test_what_autotunes_own_trainer_does_not_do_is_told() -> None:
    found = understood(
        {
            **BATCH,
            "optimizer": {"type": "Lion"},
            "scheduler": {"type": "WarmupLR"},
            "compile": {"deepcompile": True},
            "activation_checkpointing": {"partition_activations": True},
            "zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}},
        }
    )
    assert [item.key for item in found.script_only] == [
        *("optimizer", "scheduler", "activation_checkpointing", "compile.deepcompile"),
        "zero_optimization.zenflow",
    ]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ["fp16.enabled", "both true"]),
        ({"fp16": {"opt_level": "O2"}}, ["fp16.opt_level", '"O2"', "does not know this key"]),
        ({"zero_optimization": {"stgae": 1}}, ["zero_optimization.stgae", "did you mean stage?"]),
        ({"zero_optimization": {"stage": 4}}, ["stage is 4", "0, 1, 2 or 3"]),
        ({"zero_optimization": {"reduce_bucket_size": "2e8"}}, ['"2e8"', "a whole number"]),
        ({"zero_optimization": {"reduce_bucket_size": 0}}, ["reduce_bucket_size is 0", "from 1"]),
        ({"zero_optimization": {"mics_shard_size": 2}}, ["mics_shard_size", "removed"]),
        ({"zero_optimization": {"offload_param": {"x": 1}}}, ["offload_param.x"]),
        ({"zero_optimization": 1}, ["zero_optimization is 1", "a mapping"]),
        (
            {"zero_optimization": {"cpu_offload": True, "offload_optimizer": {}}},
            ["cpu_offload and offload_optimizer", "keep one"],
        ),
        ({"amp": {"enabled": False}}, ["amp", "removed", "mere key"]),
        ({"fp16": {"enabled": True, "loss_scale": 128}}, ["fp16.loss_scale is 128", "write 0"]),
        ({"fp16": {"enabled": "auto", "loss_scale": "8"}}, ["fp16.loss_scale", "static"]),
        ({"fp16": {"enabled": True, "initial_scale_power": 128}}, ["128", "0 to 127"]),
        ({"fp16": {"enabled": True, "hysteresis": 0}}, ["hysteresis is 0", "never fall"]),
        ({"fp16": {"enabled": True, "min_loss_scale": 0.5}}, ["min_loss_scale is 0.5"]),
        ({"fp16": {"enabled": True, "loss_scale_window": 0}}, ["loss_scale_window is 0"]),
        (
            {"fp16": {"enabled": True, "consecutive_hysteresis": True}},
            ["consecutive_hysteresis is true", "delete it"],
        ),
        (
            {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
            ["bf16_master_weights_and_grads is true", "fp32"],
        ),
        ({"torch_autocast": {"enabled": True}}, ["torch_autocast.enabled is true"]),
        ({"tensor_parallel": {"autotp_size": 2}}, ["autotp_size is 2", "share their samples"]),
        ({"sequence_parallel_size": 2}, ["sequence_parallel_size is 2"]),
        ({"gradient_allreduce_op": "sum"}, ["gradient_allreduce_op", "average"]),
        ({"autotuning": {"enabled": True}}, ["autotuning.enabled is true", "delete"]),
        ({"optimizer": {"type": "OneBitAdam"}}, ["OneBitAdam", "removed"]),
        (
            {"data_efficiency": {"data_routing": {"random_ltd": {"enabled": True}}}},
            ["random_ltd.enabled is true", "tokens"],
        ),
        ({"communication_data_type": "bfloat16"}, ["communication_data_type", "fp32, bf16, fp16"]),
        ({"communication_data_type": "auto"}, ["communication_data_type", "nobody fills in"]),
        ({"gradient_clipping": "1.0"}, ["gradient_clipping", "a number from 0"]),
        ({"wall_clock_breakdown": "yes"}, ["wall_clock_breakdown", "true or false"]),
        ({"train_micro_batch_size_per_gpu": "4"}, ["train_micro_batch_size_per_gpu", '"4"']),
        ({"train_micro_batch_size_per_gpu": True}, ["train_micro_batch_size_per_gpu is true"]),
        ({"train_batch_size": 7}, ["train_batch_size is 7", "no multiple of 2 x 3"]),
        ({"train_batch_size": "CONFIG_BATCH_SIZE,"}, ["train_batch_size", "a placeholder"]),
        ({"fp16": {"enabled": "CONFIG_FP16_ENABLED"}}, ["fp16.enabled", "a placeholder"]),
        ({"data_types": {"param_dtype": "bf16"}}, ["param_dtype", "the precision is fp32"]),
        ({"timers": {"throughput": {"x": 1}}}, ["timers.throughput.x"]),
        ({"optimizer": None}, ["optimizer is null", "a mapping"]),
    ],
)
def test_what_cannot_be_a_baseline_is_refused_by_key_value_and_reason(
    config: dict[str, Any], words: list[str]
) -> None:
    text = reasons({**BATCH, **config})
    assert all(word in text for word in words), text
    assert "\n" not in text


def test_loss_scale_keys_of_a_block_that_is_off_do_no_harm() -> None:
    fp16 = {"enabled": False, "loss_scale": 128, "hysteresis": 0, "consecutive_hysteresis": True}
    assert understood({**BATCH, "fp16": fp16}).knobs["precision"] == "fp32"


def test_every_reason_is_given_at_once() -> None:
    text = reasons({**BATCH, "amp": {}, "fp16": {"type": "x"}, "gradient_allreduce_op": "sum"})
    assert len(text.splitlines()) == 3


def test_a_refused_file_still_tells_its_dead_keys() -> None:
    found = understand_deepspeed({**BATCH, "amp": {}, "fp32_allreduce": True})
    assert isinstance(found, Refused)
    assert [item.key for item in found.inert] == ["fp32_allreduce"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"distributed_type": "FSDP"}, "baseline.accelerate_config"),
        ({"pipe_parallel_size": 1, "num_layers": 2, **BATCH}, "gpt-neox"),
        ({"deepspeed": dict(BATCH)}, "file of its own"),
        ({}, "holds no key"),
    ],
)
def test_a_file_of_another_program_is_told_from_deepspeeds(
    config: dict[str, Any], words: str
) -> None:
    assert words in reasons(config)


def test_hjson_is_read_as_deepspeed_reads_it() -> None:
    found = read_deepspeed(CONFIGS / "plain.json")
    assert isinstance(found, Understood)
    assert found.knobs["micro_batch"] == 4
    assert found.knobs["bucket_bytes"] == 200_000_000
    assert [item.key for item in found.inert] == ["fp32_allreduce", "overlap_comm"]
    assert any("strict JSON" in note for note in found.notes)


def test_yaml_is_read_by_the_name_of_the_file(tmp_path: Path) -> None:
    text = "train_micro_batch_size_per_gpu: 2\nbf16: {enabled: true}\noptimizer: {type: Adam}\n"
    found = read_deepspeed(written(tmp_path, text, "ds.yml"))
    assert isinstance(found, Understood)
    assert (found.knobs["precision"], found.knobs["micro_batch"]) == ("bf16", 2)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("ds.json", '{"a": 1, "a": 2}', "the key a stands twice"),
        ("ds.yaml", "a: 1\nb:\n  c: 1\n  c: 2\n", "line 4: the key c stands twice"),
        ("ds.json", '{"a": [1, }', "line 1, column"),
        ("ds.yaml", "a: [1\n", "line 2, column"),
        ("ds.json", "[1, 2]", "a list"),
        ("ds.yaml", "- 1\n", "a list"),
        ("ds.json", "", "holds no key"),
        ("ds.yaml", "", "holds nothing"),
        ("ds.yaml", "1: 2\n", "the key 1 is no text"),
        ("ds.yaml", "train_batch_size: 2024-01-01\n", "the value 2024-01-01 is nothing"),
        ("ds.yaml", "optimizer: {params: {lr: .inf}}\n", "no finite number"),
        ("ds.json", '{"a": 1e400}', "neither JSON nor YAML"),
        ("ds.json", '{"a":' * 5000, "too deeply"),
        ("ds.json", f'{{"a": "{"x" * 1_000_000}"}}', "larger than"),
        ("ds.yaml", "learning_rate: 1\n", "none of its keys is DeepSpeed's"),
    ],
)
def test_text_that_is_no_configuration_is_refused_with_its_place(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    assert words in refusal(written(tmp_path, text, name))


def test_yaml_that_grows_without_end_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than 20000 values" in refusal(written(tmp_path, "\n".join(lines), "ds.yaml"))


def test_a_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    assert str(tmp_path / "absent.json") in refusal(tmp_path / "absent.json")
    assert "cannot be read" in refusal(tmp_path)


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(b'{\n"a": "\xff"}')
    assert "line 2: byte 0xff" in refusal(path)


def test_reading_changes_nothing_in_the_configuration() -> None:
    text = (CONFIGS / "hf_auto.json").read_text(encoding="utf-8")
    config = json.loads(text)
    assert understood(config).deepspeed == json.loads(text)
