"""Public configuration files: each is understood, with its dead keys named, or refused.

The files are no part of the project; where they are absent these tests are skipped. What is
expected of each was found by reading it.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.backends import RESTRICTIONS, backend_of
from autotune.configs import Refused, Understood, carry, read_accelerate, read_deepspeed, settle
from autotune.render import render
from autotune.setup import Setup
from autotune.space import make_baseline, make_space
from tests.build import TINY, make_context
from tests.configs.launch import fsdp_plugin, launched, write

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the public files are not here")

Read = Callable[[Path], "Understood | Refused"]
Expected = tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]

BATCH = ("micro_batch", "gradient_accumulation")
FLAGS = ("precision", *BATCH)
"""Of most files for transformers: its flags decide."""


def scale(power: int, window: int = 1000, hysteresis: int = 2) -> dict[str, int]:
    return {
        "loss_scale.initial_power": power,
        "loss_scale.window": window,
        "loss_scale.hysteresis": hysteresis,
        "loss_scale.minimum": 1,
    }


def zero(stage: int, bucket: int | str | None, overlap: bool, **others: Any) -> dict[str, Any]:
    """Knobs of a DeepSpeed file; a bucket that is ``"open"`` waits for the precision."""
    found = {"backend": "deepspeed", "zero_stage": stage, "overlap_comm": overlap, **others}
    return found if bucket == "open" else {**found, "bucket_bytes": bucket}


BF16 = {"precision": "bf16", "grad_comm_dtype": "bf16"}
FP16 = {"precision": "fp16", "grad_comm_dtype": "fp16"}
GIGABYTE = 10**9  # 5e8 elements of 16 bits

DEEPSPEED: Mapping[str, Expected] = {
    "Luodian__Otter__pipeline_accelerate_configs_ds_zero3_config.json": (
        zero(3, None, True, **scale(16)),
        FLAGS,
        (),
    ),
    "OpenGVLab__InternVL__internvl_chat_zero_stage1_config.json": (
        zero(1, "open", True, **scale(32)),
        FLAGS,
        (),
    ),
    "THUDM__ChatGLM-6B__ptuning_deepspeed.json": (
        zero(2, "open", False, **scale(16)),
        ("precision", "micro_batch"),
        (),
    ),
    "axolotl-ai-cloud__axolotl__deepspeed_configs_zero1.json": (
        zero(1, "open", True, **scale(32)),
        FLAGS,
        (),
    ),
    "axolotl-ai-cloud__axolotl__deepspeed_configs_zero3.json": (
        zero(3, None, True, **scale(32)),
        FLAGS,
        (),
    ),
    "axolotl-ai-cloud__axolotl__deepspeed_configs_zero3_bf16_cpuoffload_params.json": (
        zero(3, None, True, **BF16),
        BATCH,
        (),
    ),
    "baichuan-inc__Baichuan2__fine-tune_ds_config.json": (
        zero(3, "open", True, **scale(16)),
        FLAGS,
        (),
    ),
    "bigscience-workshop__bigscience__jz_configs_deepspeed_ds_zero3.json": (
        zero(3, None, True, **FP16, **scale(16)),
        BATCH,
        (),
    ),
    "deepspeedai__DeepSpeedExamples__training_DeepSpeed-ZenFlow_finetuning_zf_config.json": (
        zero(2, GIGABYTE, False, **BF16),
        ("micro_batch",),
        (),
    ),
    "deepspeedai__DeepSpeed__tests_torch_compile_ds_config_z3_deepcompile_no_persist.json": (
        zero(3, GIGABYTE, False, **BF16),
        ("micro_batch",),
        (),
    ),
    "deepspeedai__Megatron-DeepSpeed__examples_deepspeed_curriculum_learning_"
    "ds_zero_stage_1_config_baseline.json": (
        zero(1, GIGABYTE, False, **FP16, **scale(16)),
        ("micro_batch",),
        (),
    ),
    "hiyouga__LLaMA-Factory__examples_deepspeed_ds_z0_config.json": (
        {
            "backend": "deepspeed",
            "zero_stage": 0,
            **{key: value for key, value in scale(16).items() if "hysteresis" not in key},
        },
        FLAGS,
        (),
    ),
    "hiyouga__LLaMA-Factory__examples_deepspeed_ds_z3_fp8_config.json": (
        zero(3, "open", False),
        FLAGS,
        ("comms_config", "monitor_config"),
    ),
    "lm-sys__FastChat__playground_deepspeed_config_s2.json": (
        zero(2, "open", True, **scale(16)),
        FLAGS,
        (),
    ),
    "microsoft__DeepSpeedExamples__Megatron-LM_scripts_ds_zero2_config.json": (
        zero(2, GIGABYTE, False, **FP16, **scale(16)),
        ("micro_batch",),
        (),
    ),
    "modelscope__ms-swift__swift_config_zero2.json": (
        zero(2, "open", False, **scale(16)),
        FLAGS,
        (),
    ),
    "modelscope__ms-swift__swift_config_zero3_offload.json": (
        zero(3, None, False, **scale(16)),
        FLAGS,
        (),
    ),
    "nomic-ai__gpt4all__gpt4all-training_configs_deepspeed_ds_config.json": (
        zero(2, "open", False, **scale(32)),
        FLAGS,
        (),
    ),
    "stanford-crfm__mistral__conf_deepspeed_z2-small-conf.json": (
        zero(2, "open", True, **scale(16)),
        ("precision", "micro_batch"),
        (),
    ),
    "tatsu-lab__stanford_alpaca__configs_default_offload_opt_param.json": (
        zero(3, None, True, **scale(16)),
        FLAGS,
        (),
    ),
}
AN_ACCELERATE_FILE = "baseline.accelerate_config"
DEEPSPEED_REFUSED: Mapping[str, str] = {
    "CarperAI__trlx__configs_accelerate_zero2-bf16.yaml": AN_ACCELERATE_FILE,
    "CarperAI__trlx__examples_summarize_rlhf_configs_ds_config_trlx_gptj_summarize.json": (
        "fp16.min_loss_scale is 0.5"
    ),
    "CarperAI__trlx__examples_summarize_rlhf_sft_ds_config_gptj.json": "fp16.opt_level",
    "EleutherAI__gpt-neox__configs_125M-dmoe.yml": "gpt-neox",
    "EleutherAI__gpt-neox__configs_llemma_7B.yml": "gpt-neox",
    "EleutherAI__gpt-neox__configs_pythia_1B.yml": "gpt-neox",
    "allenai__open-instruct__configs_ds_configs_deepspeed_zero3.yaml": AN_ACCELERATE_FILE,
    "axolotl-ai-cloud__axolotl__deepspeed_configs_zero2_torch_compile.json": "compile.backend",
    "deepspeedai__DeepSpeedExamples__training_MoQ_test.json": "quantize_training",
    "deepspeedai__DeepSpeedExamples__training_autotuning_hf_deberta_ds_config_fp16_tune.json": (
        "autotuning.enabled"
    ),
    "deepspeedai__DeepSpeedExamples__training_bf16_master_weight_configs_bf16_full.json": (
        "bf16.bf16_master_weights_and_grads"
    ),
    "deepspeedai__DeepSpeedExamples__training_bing_bert_1-bit_adam_nccl_"
    "deepspeed_bsz4k_onebitadam_config_seq128_nccl.json": "OneBitAdam",
    "deepspeedai__DeepSpeedExamples__training_data_efficiency_vit_finetuning_config_"
    "ds_config_cifar_random_ltd.json": "random_ltd",
    "deepspeedai__Megatron-DeepSpeed__examples_deepspeed_MoE_ds_config_gpt_TEMPLATE.json": (
        "a placeholder"
    ),
    "deepspeedai__Megatron-DeepSpeed__examples_deepspeed_compression_"
    "ds_config_gpt_TEMPLATE_compression.json": "compression_training",
    "hiyouga__LLaMA-Factory__examples_deepspeed_ds_z2_autotp_config.json": "autotp_size is 2",
    "huggingface__alignment-handbook__recipes_accelerate_configs_zero3.yaml": AN_ACCELERATE_FILE,
    "huggingface__open-r1__recipes_accelerate_configs_zero2.yaml": AN_ACCELERATE_FILE,
    "huggingface__peft__examples_sft_configs_deepspeed_config_z3_qlora.yaml": AN_ACCELERATE_FILE,
    "huggingface__trl__trl_accelerate_configs_zero3.yaml": AN_ACCELERATE_FILE,
}

INLINE_2 = zero(2, GIGABYTE, False, **BF16)
INLINE_3 = zero(3, GIGABYTE, True, **BF16)
FSDP2 = {"backend": "fsdp", "zero_stage": 3, "activation_checkpointing": False}
ACCELERATE: Mapping[str, Expected] = {
    "CarperAI__trlx__zero2-fp16.yaml": (
        zero(2, GIGABYTE, False, **FP16, **scale(16)),
        ("micro_batch",),
        (),
    ),
    "NVIDIA__Model-Optimizer__accelerate_fsdp2_hybrid.yaml": (
        {**FSDP2, "loss_scale.initial_power": 16, "loss_scale.window": 2000},
        FLAGS,
        ("fsdp_config.fsdp_sharding_strategy", "fsdp_config.fsdp_use_orig_params"),
    ),
    "NVIDIA__Model-Optimizer__llm_distill_fsdp2.yaml": ({**FSDP2, **BF16}, BATCH, ()),
    "OpenLMLab__MOSS-RLHF__accelerate_config.yaml": (INLINE_2, ("micro_batch",), ()),
    "allenai__open-instruct__deepspeed_zero2.yaml": (INLINE_2, BATCH, ()),
    "allenai__open-instruct__deepspeed_zero3.yaml": (INLINE_3, BATCH, ()),
    "hiyouga__LLaMA-Factory__fsdp2_config.yaml": ({**FSDP2, **BF16}, BATCH, ()),
    "huggingface__alignment-handbook__zero3.yaml": (INLINE_3, BATCH, ()),
    "huggingface__open-r1__zero2.yaml": (INLINE_2, BATCH, ()),
    "huggingface__open-r1__zero3.yaml": (INLINE_3, BATCH, ()),
    "huggingface__peft__deepspeed_config.yaml": (INLINE_3, ("micro_batch",), ()),
    "huggingface__trl__fsdp2.yaml": ({**FSDP2, **BF16}, BATCH, ()),
}
FSDP1 = ("accelerate to-fsdp2", ())
OLD_PREFETCH = ("accelerate to-fsdp2", ("fsdp_config.fsdp_backward_prefetch_policy",))
ACCELERATE_REFUSED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "AlignmentResearch__robust-llm-2024__accelerate_config.yaml": FSDP1,
    "ContextualAI__HALOs__fsdp_2x8gpu.yaml": OLD_PREFETCH,
    "ContextualAI__HALOs__fsdp_8gpu.yaml": OLD_PREFETCH,
    "NOTFSDP__Luodian__Otter__accelerate_config_fsdp.yaml": (
        "a single process",
        ("main_process_port", "downcast_bf16"),
    ),
    "foundation-model-stack__fms-hf-tuning__accelerate_fsdp_defaults.yaml": OLD_PREFETCH,
    "hiyouga__LLaMA-Factory__fsdp_config.yaml": FSDP1,
    "hiyouga__LLaMA-Factory__fsdp_config_multiple_nodes.yaml": FSDP1,
    "hiyouga__LLaMA-Factory__fsdp_config_offload.yaml": FSDP1,
    "huggingface__accelerate__deepspeed.yaml": ("zero_stage1_config.json cannot be read", ()),
    "huggingface__accelerate__fp8.yaml": ('mixed_precision is "fp8"', ()),
    "huggingface__accelerate__slurm_fsdp_config.yaml": FSDP1,
    "huggingface__accelerate__tp_hsdp.yaml": ("dp_replicate_size is 2", ()),
    "huggingface__peft__fsdp_config.yaml": FSDP1,
    "huggingface__peft__fsdp_config_qlora.yaml": FSDP1,
    "huggingface__trl__alst_ulysses_4gpu.yaml": (
        "parallelism_config_sp_size is 2",
        ("deepspeed_config.seq_parallel_communication_data_type",),
    ),
    "huggingface__trl__context_parallel_2gpu.yaml": ("parallelism_config_cp_size is 2", ()),
    "huggingface__trl__fsdp1.yaml": (
        "fsdp_version is 1",
        ("fsdp_config.fsdp_reshard_after_forward",),
    ),
}


def names(folder: str) -> list[str]:
    return sorted(path.name for path in (CORPUS / folder).glob("*"))


def test_every_public_file_is_expected_to_be_something() -> None:
    assert names("deepspeed") == sorted([*DEEPSPEED, *DEEPSPEED_REFUSED])
    assert names("accelerate") == sorted([*ACCELERATE, *ACCELERATE_REFUSED])


def check(found: Understood | Refused, expected: Expected) -> None:
    knobs, opened, inert = expected
    assert isinstance(found, Understood), found
    assert found.knobs == knobs
    assert sorted(found.open) == sorted(opened)
    assert tuple(item.key for item in found.inert) == inert


@pytest.mark.parametrize("name", DEEPSPEED)
def test_a_public_deepspeed_file_is_understood(name: str) -> None:
    check(read_deepspeed(CORPUS / "deepspeed" / name), DEEPSPEED[name])


@pytest.mark.parametrize("name", DEEPSPEED_REFUSED)
def test_a_public_deepspeed_file_is_refused_by_the_key_that_is_wrong(name: str) -> None:
    found = read_deepspeed(CORPUS / "deepspeed" / name)
    assert isinstance(found, Refused)
    assert any(DEEPSPEED_REFUSED[name] in reason for reason in found.reasons)


@pytest.mark.parametrize("name", ACCELERATE)
def test_a_public_accelerate_file_is_understood(name: str) -> None:
    path = CORPUS / "accelerate" / name
    check(read_accelerate(path, path.parent), ACCELERATE[name])


@pytest.mark.parametrize("name", ACCELERATE_REFUSED)
def test_a_public_accelerate_file_is_refused_by_the_key_that_is_wrong(name: str) -> None:
    path = CORPUS / "accelerate" / name
    word, inert = ACCELERATE_REFUSED[name]
    found = read_accelerate(path, path.parent)
    assert isinstance(found, Refused)
    assert any(word in reason for reason in found.reasons)
    assert tuple(item.key for item in found.inert) == inert


@pytest.mark.parametrize("name", [name for name in DEEPSPEED_REFUSED if name.endswith(".yaml")])
def test_a_file_of_accelerate_that_is_refused_as_deepspeeds_is_understood_as_its_own(
    name: str,
) -> None:
    assert isinstance(read_accelerate(CORPUS / "deepspeed" / name), Understood)


def baseline(found: Understood, device: str, **named: Any) -> Setup:
    """The setup of a file on a machine, batches that it leaves open being 2."""
    knobs = settle(found, named)
    assert isinstance(knobs, dict), knobs
    workload = replace(
        TINY,
        micro_batch=knobs.get("micro_batch", 2),
        gradient_accumulation=found.gradient_accumulation or 2,
    )
    context = make_context(workload=workload, device=device)
    return make_baseline(knobs, make_space({}, context, RESTRICTIONS))


def possible(found: Understood) -> list[dict[str, str]]:
    """Precisions that the flags of the script can choose; none where the file says it."""
    if "precision" not in found.open:
        return [{}]
    choices = [{"precision": name} for name in ("fp32", "bf16", "fp16")]
    return [named for named in choices if isinstance(settle(found, named), dict)]


def fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that DeepSpeed understood of a configuration."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    parsed = vars(DeepSpeedConfig(copy.deepcopy(dict(config))))
    return {name: _plain(value) for name, value in parsed.items() if name != "_param_dict"}


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    return vars(value) if type(value).__module__.startswith("deepspeed") else value


def as_the_script_fills_it(found: Understood, setup: Setup) -> dict[str, Any]:
    """The user's own file with what the flags of their script would say."""
    config = copy.deepcopy(dict(found.config))
    config.pop("train_batch_size", None)
    if config.get("gradient_clipping") == "auto":
        del config["gradient_clipping"]
    config["train_micro_batch_size_per_gpu"] = setup.micro_batch
    config["gradient_accumulation_steps"] = setup.gradient_accumulation
    for name in ("fp16", "bf16"):
        if config.get(name, {"enabled": "auto"}).get("enabled") == "auto":
            config[name] = {**config.get(name, {}), "enabled": name == setup.precision}
    return config


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", DEEPSPEED)
def test_deepspeed_reads_the_baseline_of_a_file_as_it_reads_the_file(
    name: str, device: str
) -> None:
    found = read_deepspeed(CORPUS / "deepspeed" / name)
    assert isinstance(found, Understood)
    for named in possible(found):
        setup = baseline(found, device, **named)
        backend = backend_of(setup)
        rendered = json.loads(render(backend.template, backend.variables(setup), None))
        assert found.deepspeed is not None
        ours = fields(carry(rendered, found.deepspeed, setup, auto=False))
        theirs = fields(as_the_script_fills_it(found, setup))
        # The template writes the dtype on the wire out, which DeepSpeed else makes the precision.
        assert theirs["communication_data_type"] in (None, ours["communication_data_type"])
        theirs["communication_data_type"] = ours["communication_data_type"]
        assert ours == theirs


CHANGED = {"fsdp_sharding_strategy": "SHARD_GRAD_OP", "fsdp_use_orig_params": False}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (name, key.removeprefix("fsdp_config."))
        for name, (_, _, inert) in ACCELERATE.items()
        for key in inert
    ],
)
def test_a_dead_key_of_a_public_file_can_be_anything(
    name: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    file = yaml.safe_load((CORPUS / "accelerate" / name).read_text(encoding="utf-8"))
    before = launched(write(file))
    file["fsdp_config"][key] = CHANGED[key]
    after = launched(write(file))
    assert {name for name in before if before[name] != after[name]} <= {key.upper()}
    assert fsdp_plugin(before) == fsdp_plugin(after)
