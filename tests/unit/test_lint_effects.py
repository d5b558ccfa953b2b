"""What the lint says that a file effectively does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.lint.effect import Effect
from autotune.lint.effects import effects_of
from autotune.lint.kinds import Kind
from tests.lint_case import VERSIONS, document, fsdp1, fsdp2, zero

BF16 = {"bf16": {"enabled": True}}
FP16 = {"fp16": {"enabled": True}}
OPEN = "accumulation x ranks"


def effects(kind: Kind, text: str, folder: Path = Path()) -> dict[str, Effect]:
    found = effects_of(document(text), kind, folder, VERSIONS)
    assert len({item.aspect for item in found}) == len(found)
    return {item.aspect: item for item in found}


def of_deepspeed(**config: Any) -> dict[str, Effect]:
    return effects("deepspeed", json.dumps({"steps_per_print": 1, **config}))


def test_every_aspect_of_a_deepspeed_file_is_told() -> None:
    assert list(of_deepspeed()) == [
        *("precision", "wire", "accumulation", "sharding", "prefetch", "buckets", "scaler"),
        "batch",
    ]


@pytest.mark.parametrize(
    ("config", "precision", "wire", "by"),
    [
        (BF16, "bf16", "bf16", "version"),
        (FP16, "fp16", "fp16", "default"),
        ({}, "fp32", "fp32", "version"),
        ({**BF16, "communication_data_type": "FP32"}, "bf16", "fp32", "file"),
        ({"bf16": {"enabled": "auto"}}, None, None, "script"),
        (
            {**BF16, **zero(3), "sequence_parallel_size": 2, "communication_data_type": "bf16"},
            *("bf16", "fp32", "default"),
        ),
        ({"communication_data_type": "float"}, "fp32", None, "unclear"),
        (
            {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}, **zero(2)},
            "fp32",
            "bf16",
            "file",
        ),
        (
            {
                **{"torch_autocast": {"enabled": True, "dtype": "float16"}, **zero(1)},
                "communication_data_type": "fp32",
            },
            *("fp32", "fp16", "file"),
        ),
    ],
)
def test_the_dtype_on_the_wire_is_told_with_who_says_it(
    config: dict[str, Any], precision: str | None, wire: str | None, by: str
) -> None:
    found = of_deepspeed(**config)
    assert found["precision"].value == precision
    assert (found["wire"].value, found["wire"].by) == (wire, by)


def test_both_precisions_at_once_are_no_precision() -> None:
    found = of_deepspeed(**BF16, **FP16)["precision"]
    assert (found.value, found.by) == (None, "unclear")


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({**BF16, **zero(2, reduce_bucket_size=5e7)}, 100_000_000),
        (
            {**BF16, **zero(2, reduce_bucket_size=5e7), "communication_data_type": "fp32"},
            200_000_000,
        ),
        ({**BF16, **zero(1)}, 1_000_000_000),
        (zero(0, reduce_bucket_size=5), 2_000_000_000),
        ({**BF16, **zero(3, reduce_bucket_size="auto")}, None),
        ({**BF16, **zero(3, reduce_bucket_size="many")}, None),
    ],
)
def test_a_bucket_is_told_in_bytes_on_the_wire(config: dict[str, Any], size: int | None) -> None:
    assert of_deepspeed(**config)["buckets"].value == size


@pytest.mark.parametrize(
    ("config", "value"),
    [
        (zero(3), True),
        (zero(2), False),
        (zero(2, overlap_comm=True), True),
        (zero(0, overlap_comm=True), False),
    ],
)
def test_overlap_follows_from_the_stage_where_it_is_not_said(
    config: dict[str, Any], value: bool
) -> None:
    assert of_deepspeed(**config)["prefetch"].value is value


@pytest.mark.parametrize(
    ("config", "value"),
    [
        (BF16, None),
        (FP16, {"initial_power": 16, "window": 1000, "minimum": 1}),
        (
            {"fp16": {"enabled": True, "initial_scale_power": 8}, **zero(1)},
            {"initial_power": 8, "window": 1000, "hysteresis": 2, "minimum": 1},
        ),
        ({"fp16": {"enabled": True, "loss_scale": 128}}, {"static": 128.0}),
        (
            {**FP16, "torch_autocast": {"enabled": True, "dtype": "fp16"}},
            {"initial_power": 16, "window": 2000},
        ),
    ],
)
def test_the_loss_scale_is_told_as_it_will_run(config: dict[str, Any], value: Any) -> None:
    assert of_deepspeed(**config)["scaler"].value == value


@pytest.mark.parametrize(
    ("sizes", "text", "by"),
    [
        ((64, 2, 4), "64 = 2 x 4 x ranks, for 8 ranks", "file"),
        ((64, 3, 4), "64 = 3 x 4 x ranks, which fits no number of ranks", "file"),
        (
            (64, 2, None),
            "64 = 2 x accumulation x ranks: accumulation follows from the ranks",
            "file",
        ),
        ((None, 2, None), "2 x 1 x ranks", "file"),
        ((64, None, None), "64 in all, shared by the ranks", "file"),
        (("auto", "auto", 4), "the script decides (accumulation 4 in the file)", "script"),
    ],
)
def test_the_batch_triangle_is_told(sizes: tuple[Any, ...], text: str, by: str) -> None:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    config = {name: size for name, size in zip(names, sizes, strict=True) if size is not None}
    found = of_deepspeed(**config)["batch"]
    assert (found.text, found.by) == (text, by)


def test_fsdp1_of_accelerate_shards_fully_whatever_reshard_says() -> None:
    text = f"mixed_precision: bf16\n{fsdp1('fsdp_reshard_after_forward: SHARD_GRAD_OP')}"
    found = effects("accelerate", text)
    assert found["sharding"].text == "FSDP1 FULL_SHARD"
    assert found["precision"].value == found["wire"].value == "bf16"


def test_an_old_name_of_prefetch_prefetches_nothing() -> None:
    old = effects("accelerate", fsdp1("fsdp_backward_prefetch_policy: BACKWARD_PRE"))
    new = effects("accelerate", fsdp1("fsdp_backward_prefetch: BACKWARD_PRE"))
    assert (old["prefetch"].value, new["prefetch"].value) == (False, True)


def test_fsdp2_prefetches_by_itself() -> None:
    found = effects("accelerate", fsdp2("fsdp_reshard_after_forward: false"))
    assert found["prefetch"].value is True
    assert found["sharding"].value == 2


def test_ddp_sends_fp32_under_mixed_precision() -> None:
    found = effects("accelerate", "distributed_type: MULTI_GPU\nmixed_precision: fp16\n")
    assert found["precision"].value == "fp16"
    assert found["wire"].value == "fp32"
    assert found["buckets"].value == 25 * 2**20
    assert found["scaler"].value == {"initial_power": 16, "window": 2000}


def test_the_file_that_accelerate_names_is_read(tmp_path: Path) -> None:
    named = {**BF16, **zero(3), "communication_data_type": "fp32"}
    (tmp_path / "ds.json").write_text(json.dumps(named))
    text = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    assert effects("accelerate", text, tmp_path)["wire"].text == "fp32 (ds.json)"
    absent = effects("accelerate", text.replace("ds.json", "no.json"), tmp_path)
    assert "not here" in absent["sharding"].text


def test_arguments_fill_in_what_deepspeed_leaves_open() -> None:
    text = (
        "bf16: true\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 2\n"
        "deepspeed:\n  bf16: {enabled: auto}\n  train_micro_batch_size_per_gpu: auto\n"
        "  train_batch_size: auto\n  zero_optimization: {stage: 2, reduce_bucket_size: 100}\n"
    )
    found = effects("huggingface", text)
    assert found["precision"].value == "bf16"
    assert found["buckets"].value == 200
    assert found["batch"].value == {"micro": 4, "steps": 2}


def test_arguments_without_a_word_on_sharding_are_ddp_with_their_bucket() -> None:
    found = effects("huggingface", "bf16: true\nddp_bucket_cap_mb: 100\n")
    assert found["buckets"].value == 100 * 2**20
    assert found["batch"].value == {"micro": 8, "steps": 1}


def test_words_of_old_shard_as_transformers_reads_them() -> None:
    found = effects("huggingface", "bf16: true\nfsdp: shard_grad_op offload\n")
    assert found["sharding"].value == 2
    assert "CPU" in found["sharding"].text


def test_a_fragment_leaves_the_precision_to_the_script() -> None:
    found = effects("fsdp", '{"version": 1, "backward_prefetch": "backward_pre"}')
    assert found["precision"].by == "script"
    assert found["prefetch"].value is True


@pytest.mark.parametrize(
    "text",
    [
        '{"zero_optimization": {"stage": []}, "fp16": 1, "bf16": "x"}',
        '{"zero_optimization": {"stage": 9}, "train_batch_size": {}}',
        '{"fp16": {"enabled": "maybe", "loss_scale": "x", "hysteresis": []}}',
        '{"train_batch_size": 0, "train_micro_batch_size_per_gpu": 0}',
    ],
)
def test_values_of_any_type_leave_every_aspect_told(text: str) -> None:
    assert len(effects("deepspeed", text)) == 8
