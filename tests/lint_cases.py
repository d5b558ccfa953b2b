"""For every rule a small file that it finds, and its twin that it does not."""

from __future__ import annotations

from collections.abc import Mapping

from tests.lint_case import BATCH, WIRE, Case, deepspeed, fp16, fsdp1, fsdp2, zero
from tests.lint_cases_deepspeed import DEEPSPEED

OTHERS: Mapping[str, tuple[Case, ...]] = {
    "inert-key": (
        deepspeed(bad={**BATCH, "fp32_allreduce": True}, good={**BATCH, "_note": "x"}, line=3),
        Case(
            "accelerate",
            fsdp2("fsdp_use_orig_params: true"),
            fsdp1("fsdp_use_orig_params: true"),
            4,
        ),
        Case(
            "accelerate",
            "distributed_type: DEEPSPEED\ndynamo_config:\n  dynamo_backend: INDUCTOR\n",
            "distributed_type: MULTI_GPU\ndynamo_config:\n  dynamo_backend: INDUCTOR\n",
            2,
        ),
    ),
    "misspelt-key": (
        deepspeed(bad={**BATCH, "comunication_data_type": "bf16"}, good={**BATCH, **WIRE}, line=3),
        Case(
            "accelerate", fsdp2("fsdp_offload_param: true"), fsdp2("fsdp_offload_params: true"), 4
        ),
        Case(
            "huggingface", "output_dir: x\nlearning_rat: 1.0e-5", "output_dir: x\npacking: true", 2
        ),
        Case(
            "fsdp",
            "version: 2\nreshard_after_foward: true",
            "version: 2\nreshard_after_forward: true",
            2,
        ),
    ),
    "misplaced-key": (
        deepspeed(
            bad={**BATCH, "loss_scale_window": 500, **fp16()},
            good={**BATCH, **fp16(loss_scale_window=500)},
            line=3,
        ),
    ),
    "old-name": (
        deepspeed(
            bad={**BATCH, "bfloat16": {"enabled": True}},
            good={**BATCH, "bf16": {"enabled": True}},
            line=3,
        ),
        deepspeed(bad={"zero_optimization": True}, good=zero(1), line=2),
        deepspeed(
            bad=zero(3, stage3_gather_fp16_weights_on_model_save=True),
            good=zero(3, stage3_gather_16bit_weights_on_model_save=True),
            line=2,
        ),
        Case(
            "accelerate",
            "distributed_type: MULTI_GPU\nfp16: true",
            "distributed_type: MULTI_GPU\nmixed_precision: fp16",
            2,
        ),
        Case(
            "huggingface",
            "output_dir: x\nfsdp: full_shard auto_wrap",
            "output_dir: x\nfsdp: true",
            2,
        ),
    ),
    "duplicate-key": (
        Case("deepspeed", '{\n"bf16": {},\n"bf16": {}\n}', '{\n"bf16": {}\n}', 2),
        Case("huggingface", "bf16: true\nbf16: false", "bf16: true", 1),
    ),
    "unknown-key": (
        deepspeed(bad=zero(2, overlap_com=True), good=zero(2, overlap_comm=True), line=2),
        Case(
            "accelerate",
            "distributed_type: MULTI_GPU\nmixed_precison: bf16",
            "distributed_type: MULTI_GPU\nmixed_precision: bf16",
            2,
        ),
    ),
    "wrong-type": (
        deepspeed(
            bad={"train_micro_batch_size_per_gpu": "2"},
            good={"train_micro_batch_size_per_gpu": 2},
            line=2,
        ),
        deepspeed(
            bad={**BATCH, "communication_data_type": "bfloat16"}, good={**BATCH, **WIRE}, line=3
        ),
        deepspeed(
            bad={**BATCH, "steps_per_print": "auto"},
            good={**BATCH, "gradient_clipping": "auto"},
            line=3,
        ),
        Case(
            "huggingface",
            "output_dir: x\nlearning_rate: 1e-5",
            "output_dir: x\nlearning_rate: 1.0e-5",
            2,
        ),
        Case("huggingface", 'output_dir: x\nbf16: "false"', "output_dir: x\nbf16: false", 2),
        Case(
            "fsdp",
            "version: 2\nreshard_after_forward: shard_grad_op",
            "version: 2\nreshard_after_forward: false",
            2,
        ),
    ),
    "unfilled-placeholder": (
        Case("deepspeed", '{\n"train_batch_size": BATCH_SIZE\n}', '{\n"train_batch_size": 4\n}', 2),
    ),
    "fp16-and-bf16": (
        deepspeed(
            bad={**fp16(), "bf16": {"enabled": True}},
            good={**fp16(), "bf16": {"enabled": False}},
            line=2,
        ),
        Case("huggingface", "fp16: true\nbf16: true", "fp16: false\nbf16: true", 1),
    ),
    "refused-combination": (
        deepspeed(
            bad={"prescale_gradients": True, **zero(2)},
            good={"prescale_gradients": True, **zero(1)},
            line=2,
        ),
        deepspeed(
            bad={**BATCH, "data_types": {"grad_accum_dtype": "fp32"}, "bf16": {"enabled": True}},
            good={"data_types": {"grad_accum_dtype": "fp32"}, "bf16": {"enabled": True}, **zero(1)},
            line=3,
        ),
        deepspeed(
            bad={"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}},
            good={"optimizer": {"type": "Adam"}, "gradient_clipping": 1},
            line=2,
        ),
        deepspeed(
            bad=zero(3, compute_grad_norm=False), good=zero(1, compute_grad_norm=False), line=2
        ),
        Case(
            "accelerate", "num_machines: 1\nmixed_precision: bf16", "distributed_type: MULTI_GPU", 1
        ),
        Case(
            "accelerate",
            fsdp2("fsdp_state_dict_type: LOCAL_STATE_DICT"),
            fsdp1("fsdp_state_dict_type: LOCAL_STATE_DICT"),
            4,
        ),
    ),
    "fsdp1-reshard": (
        Case(
            "accelerate",
            fsdp1("fsdp_reshard_after_forward: SHARD_GRAD_OP"),
            fsdp1("fsdp_sharding_strategy: SHARD_GRAD_OP"),
            4,
        ),
        Case(
            "huggingface",
            "fsdp: shard_grad_op\nfsdp_config: {version: 1}",
            "fsdp: shard_grad_op\nfsdp_config: {version: 2}",
            1,
        ),
        Case(
            "fsdp",
            "version: 1\nreshard_after_forward: shard_grad_op",
            "version: 2\nreshard_after_forward: false",
            2,
        ),
    ),
    "fsdp2-hybrid": (
        Case(
            "accelerate",
            fsdp2("fsdp_sharding_strategy: HYBRID_SHARD"),
            fsdp1("fsdp_sharding_strategy: HYBRID_SHARD"),
            4,
        ),
        Case("huggingface", "bf16: true\nfsdp: hybrid_shard", "bf16: true\nfsdp: true", 2),
    ),
    "fsdp-version-absent": (
        Case(
            "accelerate",
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: false",
            fsdp2("fsdp_offload_params: false"),
            2,
        ),
        Case("fsdp", "reshard_after_forward: true", "version: 2", 1),
    ),
    "fsdp1-prefetch-old-name": (
        Case(
            "accelerate",
            fsdp1("fsdp_backward_prefetch_policy: BACKWARD_PRE"),
            fsdp1("fsdp_backward_prefetch: BACKWARD_PRE"),
            4,
        ),
    ),
    "fsdp1-prefetch-off": (
        Case("accelerate", fsdp1(), fsdp1("fsdp_backward_prefetch: NO_PREFETCH"), 2),
        Case("fsdp", "version: 1", "version: 1\nbackward_prefetch: backward_pre", 1),
    ),
    "acc-no-unquoted": (
        Case(
            "accelerate",
            "distributed_type: FSDP\nmixed_precision: no",
            "distributed_type: FSDP\nmixed_precision: 'no'",
            2,
        ),
    ),
    "acc-topology": (
        Case(
            "accelerate",
            "distributed_type: FSDP\nnum_processes: 8",
            "distributed_type: FSDP\nnum_processes: -1\nnum_machines: 1",
            2,
        ),
    ),
    "acc-doubled": (
        Case(
            "accelerate",
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
            "  deepspeed_config_file: x.json\n  zero_stage: 2",
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: x.json",
            4,
        ),
    ),
    "acc-clipping-zero": (
        Case(
            "accelerate",
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_clipping: 0",
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_clipping: 1.0",
            3,
        ),
    ),
    "hf-fsdp-key-dropped": (
        Case(
            "huggingface",
            "fsdp: true\nfsdp_config:\n  version: 2\n  reduce_dtype: fp32",
            "fsdp: true\nfsdp_config:\n  version: 2\n  cpu_offload: true",
            4,
        ),
        Case(
            "fsdp",
            "version: 2\nbackward_prefetch: backward_pre",
            "version: 1\nbackward_prefetch: backward_pre",
            2,
        ),
    ),
    "hf-fsdp-off": (
        Case(
            "huggingface",
            "bf16: true\nfsdp_config: {version: 2}",
            "fsdp: true\nfsdp_config: {version: 2}",
            2,
        ),
    ),
    "hf-two-checkpointings": (
        Case(
            "huggingface",
            "gradient_checkpointing: true\nfsdp: true\n"
            "fsdp_config: {version: 2, activation_checkpointing: true}",
            "gradient_checkpointing: false\nfsdp: true\n"
            "fsdp_config: {version: 2, activation_checkpointing: true}",
            1,
        ),
    ),
    "hf-deepspeed-mismatch": (
        Case(
            "huggingface",
            "per_device_train_batch_size: 8\ndeepspeed:\n  train_micro_batch_size_per_gpu: 4",
            "per_device_train_batch_size: 8\ndeepspeed:\n  train_micro_batch_size_per_gpu: auto",
            3,
        ),
    ),
    "hf-removed-argument": (
        Case(
            "huggingface",
            "output_dir: x\nevaluation_strategy: steps",
            "output_dir: x\neval_strategy: steps",
            2,
        ),
        Case(
            "huggingface",
            "output_dir: x\nwarmup_ratio: 0.1",
            "output_dir: x\nwarmup_steps: 0.1",
            2,
        ),
    ),
}

CASES: Mapping[str, tuple[Case, ...]] = {**OTHERS, **DEEPSPEED}
"""`consumer-refuses` alone has none: only a consumer says it."""
