"""The keys that DeepSpeed 0.19.8 reads, and what they may hold.

A key of a validated block that is not listed ends DeepSpeed with an error; one at the top level or
in a block that is not validated is ignored without a word. A test compares the validated blocks
with the installed DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.configs.values import (
    ANY,
    BOOL,
    FREE,
    LIST,
    TEXT,
    TEXTS,
    Kind,
    any_case,
    as_float,
    mapping,
    number,
    one_of,
    optional,
    whole,
)

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
DTYPES = (
    *("fp32", "fp16", "bf16", "float32", "float16", "bfloat16", "float", "half"),
    *("torch.float32", "torch.float16", "torch.bfloat16"),
)
OPTIONAL_BOOL = optional(BOOL)
OPTIONAL_TEXT = optional(TEXT)
DEVICE = one_of("none", "cpu", "nvme")
SCALE = Kind(
    "a number from 0, where 0 means dynamic",
    lambda value: not isinstance(value, bool) and number(0).accepts(value),
)
COUNTED = Kind(
    "a whole number", lambda value: not isinstance(value, bool) and whole().accepts(value)
)

FP16: Mapping[str, Kind] = {
    "enabled": BOOL,
    "auto_cast": BOOL,
    "loss_scale": SCALE,
    "initial_scale_power": whole(),
    "loss_scale_window": COUNTED,
    "hysteresis": whole(),
    "consecutive_hysteresis": BOOL,
    "min_loss_scale": COUNTED,
    "fp16_master_weights_and_grads": BOOL,
}
BF16: Mapping[str, Kind] = {
    "enabled": BOOL,
    "immediate_grad_update": BOOL,
    "check_grad_overflow": BOOL,
    "bf16_master_weights_and_grads": BOOL,
    "bf16_optimizer_states": BOOL,
}
OFFLOAD_PARAM: Mapping[str, Kind] = {
    "device": DEVICE,
    "nvme_path": OPTIONAL_TEXT,
    "buffer_count": whole(0),
    "buffer_size": whole(0),
    "max_in_cpu": whole(0),
    "pin_memory": BOOL,
}
OFFLOAD_OPTIMIZER: Mapping[str, Kind] = {
    "device": DEVICE,
    "nvme_path": OPTIONAL_TEXT,
    "buffer_count": whole(0),
    "pin_memory": BOOL,
    "pipeline_read": BOOL,
    "pipeline_write": BOOL,
    "fast_init": BOOL,
    "ratio": number(0, 1),
    "super_offload": BOOL,
    "cpuadam_cores_perc": number(0, 1),
}
ZENFLOW: Mapping[str, Kind] = {
    "topk_ratio": Kind(
        "a number above 0 and below 1", lambda value: 0 < (as_float(value) or 0) < 1
    ),
    "select_strategy": one_of("auto", "step", "epoch"),
    "select_interval": Kind("a whole number", lambda value: isinstance(value, int)),
    "update_interval": Kind(
        "a whole number from 1", lambda value: isinstance(value, int) and value >= 1
    ),
    "overlap_step": BOOL,
    "offload": BOOL,
    "auto_ratio": number(0, 1),
    "full_warm_up_rounds": whole(),
    "pt_reserved_cores_perc": number(0, 1),
    "steps_per_epoch": optional(whole()),
}
NAMES = Kind(
    "a list of texts, or a text", lambda value: TEXTS.accepts(value) or TEXT.accepts(value)
)
LEAF_MODULE: Mapping[str, Kind] = {"classes": NAMES, "names": NAMES, "name_suffixes": NAMES}
ZERO: Mapping[str, Kind] = {
    "stage": Kind("0, 1, 2 or 3", lambda value: value in (0, 1, 2, 3, "0", "1", "2", "3")),
    "contiguous_gradients": BOOL,
    "reduce_scatter": BOOL,
    "reduce_bucket_size": whole(1),
    "use_multi_rank_bucket_allreduce": BOOL,
    "allgather_partitions": BOOL,
    "allgather_bucket_size": whole(0),
    "overlap_comm": OPTIONAL_BOOL,
    "compute_grad_norm": BOOL,
    "load_from_fp32_weights": BOOL,
    "elastic_checkpoint": BOOL,
    "offload_param": optional(mapping(OFFLOAD_PARAM)),
    "offload_optimizer": optional(mapping(OFFLOAD_OPTIMIZER)),
    "zenflow": optional(mapping(ZENFLOW)),
    "sub_group_size": whole(0),
    "cpu_offload_param": OPTIONAL_BOOL,
    "cpu_offload_use_pin_memory": OPTIONAL_BOOL,
    "cpu_offload": OPTIONAL_BOOL,
    "stage3_gather_fp16_weights_on_model_save": BOOL,
    "ignore_unused_parameters": BOOL,
    "legacy_stage1": BOOL,
    "round_robin_gradients": BOOL,
    "parameter_alignment": BOOL,
    "zero_hpz_partition_size": whole(0),
    "zero_quantized_weights": BOOL,
    "zero_quantized_nontrainable_weights": BOOL,
    "zero_quantized_gradients": BOOL,
    "memory_efficient_linear": BOOL,
    "pipeline_loading_checkpoint": BOOL,
    "override_module_apply": BOOL,
    "log_trace_cache_warnings": BOOL,
    "enable_sanity_checks": BOOL,
    "save_muon_momentum_buffer_in_memory": BOOL,
    "leaf_module": optional(mapping(LEAF_MODULE)),
}
STAGE3: Mapping[str, Kind] = {
    "prefetch_bucket_size": whole(0),
    "param_persistence_threshold": whole(0),
    "model_persistence_threshold": whole(0),
    "max_live_parameters": whole(0),
    "max_reuse_distance": whole(0),
    "gather_16bit_weights_on_model_save": BOOL,
    "module_granularity_threshold": whole(),
    "use_all_reduce_for_fetch_params": BOOL,
    "allgather_sequential": BOOL,
}
"""Of ``zero_optimization``; each may also begin with ``stage3_``."""
COMPILE: Mapping[str, Kind] = {
    **dict.fromkeys(
        (
            *("deepcompile", "autoep_non_moe", "free_activation", "offload_activation"),
            *("offload_activation_pin_memory", "offload_opt_states", "double_buffer"),
            *("symmetric_memory", "debug_log", "offload_parameters", "sync_before_reduce"),
            *("sync_after_reduce", "sync_before_allgather", "sync_after_allgather"),
            *("keep_int_input_tensors", "keep_all_input_tensors"),
        ),
        BOOL,
    ),
    "free_activation_threshold": whole(),
    "passes": optional(
        Kind(
            "a list of z1, z3, autosp and autotp",
            lambda value: (
                isinstance(value, list)
                and all(item in ("z1", "z3", "autosp", "autotp") for item in value)
            ),
        )
    ),
}
TENSOR_PARALLEL: Mapping[str, Kind] = {
    "autotp_size": whole(),
    "tp_overlap_comm": BOOL,
    "vocab_parallel_lm_head": OPTIONAL_BOOL,
    "vocab_parallel_ce_backend": one_of("torch", "liger"),
    **dict.fromkeys(
        ("tensor_parallel", "tp"),
        mapping({"tp_size": whole(), "tp_grain_size": whole(), "mpu": ANY, "tp_group": ANY}),
    ),
    "injection_policy_tuple": optional(LIST),
    "partition_config": optional(FREE),
    "preset_model": OPTIONAL_TEXT,
    "keep_module_on_host": BOOL,
    "replace_with_kernel_inject": BOOL,
    "kernel_inject": BOOL,
}
LOGGED: Mapping[str, Kind] = {"enabled": BOOL, "output_path": TEXT, "job_name": TEXT}

VALIDATED: Mapping[str, Mapping[str, Kind]] = {
    "fp16": FP16,
    "bf16": BF16,
    "bfloat16": BF16,
    "zero_optimization": {
        **ZERO,
        **STAGE3,
        **{f"stage3_{name}": kind for name, kind in STAGE3.items()},
    },
    "compile": COMPILE,
    "tensor_parallel": TENSOR_PARALLEL,
    "comms_logger": {
        **dict.fromkeys(("enabled", "prof_all", "verbose", "debug"), BOOL),
        "prof_ops": LIST,
    },
    "tensorboard": LOGGED,
    "csv_monitor": LOGGED,
    "wandb": {"enabled": BOOL, "group": OPTIONAL_TEXT, "team": OPTIONAL_TEXT, "project": TEXT},
    "comet": {
        "enabled": BOOL,
        "samples_log_interval": whole(),
        **dict.fromkeys(
            ("project", "workspace", "api_key", "experiment_name", "experiment_key", "mode"),
            OPTIONAL_TEXT,
        ),
        "online": OPTIONAL_BOOL,
    },
    "hybrid_engine": {
        **dict.fromkeys(
            ("enabled", "release_inference_cache", "pin_parameters", "enable_cuda_graph"), BOOL
        ),
        "max_out_tokens": whole(1),
        "inference_tp_size": whole(),
        "tp_gather_partition_size": whole(),
    },
    "weight_quantization": {
        "enabled": BOOL,
        "num_bits": whole(),
        "q_type": one_of("symmetric", "asymmetric"),
        "q_groups": whole(),
        "quantized_initialization": FREE,
        "post_init_quant": FREE,
    },
}
"""Blocks that DeepSpeed validates, by name; an unknown key in one is an error."""

TRUTH = Kind("true or false", lambda value: isinstance(value, bool) or value in (0, 1))
NUMBER = Kind("a number", lambda value: not isinstance(value, str) and number().accepts(value))

READ: Mapping[str, Mapping[str, Kind]] = {
    "optimizer": {
        "type": optional(TEXT),
        "params": optional(mapping({"max_grad_norm": NUMBER}, closed=False)),
        "legacy_fusion": TRUTH,
    },
    "scheduler": {"type": optional(TEXT), "params": optional(FREE)},
    "data_types": {
        **dict.fromkeys(
            ("grad_accum_dtype", "param_dtype", "buffer_dtype"), optional(one_of(*DTYPES))
        ),
        "keep_in_fp32_modules": Kind(
            '"auto" or a list of texts', lambda value: value == "auto" or TEXTS.accepts(value)
        ),
    },
    "torch_autocast": {
        "enabled": TRUTH,
        "dtype": one_of(*DTYPES),
        "lower_precision_safe_modules": TEXTS,
    },
    "activation_checkpointing": {
        **dict.fromkeys(
            (
                *("partition_activations", "contiguous_memory_optimization", "profile"),
                *("synchronize_checkpoint_boundary", "cpu_checkpointing"),
            ),
            TRUTH,
        ),
        "number_checkpoints": optional(whole()),
    },
    "flops_profiler": {
        "enabled": TRUTH,
        "detailed": TRUTH,
        **dict.fromkeys(("recompute_fwd_factor", "profile_step", "module_depth"), number()),
        "top_modules": number(),
        "output_file": OPTIONAL_TEXT,
    },
    "aio": {
        **dict.fromkeys(("block_size", "queue_depth", "intra_op_parallelism"), whole()),
        **dict.fromkeys(("single_submit", "overlap_events", "use_gds"), TRUTH),
    },
    "checkpoint": {
        "tag_validation": any_case("IGNORE", "WARN", "FAIL"),
        "load_universal": TRUTH,
        "use_node_local_storage": TRUTH,
        "parallel_write": mapping({"pipeline_stage": TRUTH}, closed=False),
        "checkpoint_serialization": TRUTH,
        "writer": optional(
            mapping(
                {
                    "type": any_case("MOCK", "PYTHON", "FAST"),
                    "data_parallel": any_case("REPLICA", "SOCKET", "MACHINE"),
                },
                closed=False,
            )
        ),
    },
    "data_efficiency": {
        "enabled": TRUTH,
        "seed": whole(),
        "data_sampling": FREE,
        "data_routing": FREE,
    },
    "timers": {"throughput": mapping({"enabled": BOOL, "synchronized": BOOL})},
}
"""Blocks that are not validated, and what DeepSpeed reads of them; it ignores other keys."""

OPEN_BLOCKS = ("pipeline", "autotuning", "expert_parallel", "datastates_ckpt", "inference")
"""Blocks that are not validated and whose keys are not listed here."""

SCALARS: Mapping[str, Kind] = {
    "communication_data_type": optional(any_case("fp32", "bf16", "fp16")),
    "seq_parallel_communication_data_type": optional(any_case("fp32", "bf16", "fp16")),
    "gradient_clipping": Kind(
        "a number from 0", lambda value: not isinstance(value, str) and number(0).accepts(value)
    ),
    "gradient_allreduce_op": any_case("mean", "sum"),
    "gradient_predivide_factor": number(),
    "wall_clock_breakdown": TRUTH,
    **dict.fromkeys(
        (
            *("prescale_gradients", "memory_breakdown", "dump_state", "dataloader_drop_last"),
            *("disable_allgather", "disable_python_gc", "managed_gradient_accumulation"),
            *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
            "use_data_before_expert_parallelism",
        ),
        optional(TRUTH),
    ),
    "steps_per_print": optional(NUMBER),
    "vocabulary_size": optional(Kind("a whole number", lambda value: isinstance(value, int))),
    "sequence_parallel_size": whole(1),
    "data_parallel_size": whole(1),
    "allgather_size": whole(0),
    "log_level": OPTIONAL_TEXT,
}

TOP_LEVEL = frozenset((*BATCH, *VALIDATED, *READ, *OPEN_BLOCKS, *SCALARS))

REMOVED = (
    *("nebula", "compression_training", "amp", "quantize_training", "sparse_gradients"),
    *("eigenvalue", "sparse_attention", "elasticity", "graph_harvesting", "curriculum_learning"),
    "progressive_layer_drop",
)
"""Features that DeepSpeed has removed (issue 8489); their mere key ends it with an error."""
REMOVED_ZERO = ("mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param")
REPLACED: Mapping[str, str] = {
    "cpu_offload": "offload_optimizer",
    "cpu_offload_param": "offload_param",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}
"""Old names in ``zero_optimization`` that DeepSpeed still understands, and the new ones."""
