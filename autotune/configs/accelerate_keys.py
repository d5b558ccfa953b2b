"""The keys that accelerate 1.15.0 reads of its configuration file.

An unknown key at the top level ends `accelerate launch` with an error; one inside ``fsdp_config``
or ``deepspeed_config`` is put on the arguments, where nobody reads it. A test compares the lists
with the installed accelerate.
"""

from __future__ import annotations

from collections.abc import Mapping

BY_SCRIPT = "accelerate's file does not say it: the script decides"
NOT_SAID = "mixed_precision is absent: the script decides"
GRAD_SCALER: Mapping[str, int] = {"loss_scale.initial_power": 16, "loss_scale.window": 2000}
"""Of ``torch.amp.GradScaler``, with which accelerate starts under FSDP2 and DDP; only code can
change it."""

TOP_LEVEL = frozenset(
    (
        *("compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug"),
        *("num_processes", "machine_rank", "num_machines", "gpu_ids", "main_process_ip"),
        *("main_process_port", "rdzv_backend", "same_network", "main_training_function"),
        *("enable_cpu_affinity", "fp8_config", "deepspeed_config", "fsdp_config"),
        *("parallelism_config", "megatron_lm_config", "mpirun_config", "downcast_bf16"),
        *("tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands"),
        *("tpu_vm", "tpu_env", "dynamo_config"),
        *("fp16", "dynamo_backend"),  # old names, which it converts
    )
)
MAPPINGS = (
    *("fp8_config", "deepspeed_config", "fsdp_config", "parallelism_config"),
    *("megatron_lm_config", "mpirun_config", "dynamo_config"),
)
FSDP = frozenset(
    (
        *("fsdp_version", "fsdp_offload_params", "fsdp_min_num_params", "fsdp_sharding_strategy"),
        *("fsdp_reshard_after_forward", "fsdp_auto_wrap_policy", "fsdp_backward_prefetch"),
        *("fsdp_transformer_layer_cls_to_wrap", "fsdp_state_dict_type", "fsdp_forward_prefetch"),
        *("fsdp_use_orig_params", "fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states"),
        *("fsdp_activation_checkpointing", "fsdp_activation_checkpointing_offload"),
        "fsdp_ignored_modules",
    )
)
"""Keys of ``fsdp_config``; accelerate adds ``fsdp_`` to one that lacks it."""
FSDP1_ONLY: Mapping[str, str] = {
    "fsdp_sharding_strategy": "version 2 reads fsdp_reshard_after_forward",
    "fsdp_backward_prefetch": "version 2 always prefetches the next layer",
    "fsdp_forward_prefetch": "version 2 has no such switch",
    "fsdp_use_orig_params": "version 2 always keeps the original parameters",
}
"""What version 2 reads over without an error, and why."""
BY_CODE = "only a FullyShardedDataParallelPlugin in code can set it"
FSDP_RENAMED: Mapping[str, tuple[str, str | None]] = {
    "fsdp_backward_prefetch_policy": (
        "an old name; accelerate reads fsdp_backward_prefetch",
        "fsdp_config.fsdp_backward_prefetch",
    ),
    "fsdp_cpu_offload": (
        "accelerate reads fsdp_offload_params",
        "fsdp_config.fsdp_offload_params",
    ),
    "fsdp_mixed_precision": ("accelerate reads mixed_precision at the top level", None),
    "fsdp_mixed_precision_policy": (BY_CODE, None),
    "fsdp_reduce_dtype": (BY_CODE, None),
    "fsdp_limit_all_gathers": (BY_CODE, None),
}
"""Names that accelerate does not read, what to say of each, and the key that took its place."""
DEEPSPEED = frozenset(
    (
        *("deepspeed_config_file", "zero_stage", "offload_optimizer_device"),
        *("offload_param_device", "gradient_accumulation_steps", "gradient_clipping"),
        *("zero3_init_flag", "zero3_save_16bit_model", "deepspeed_hostfile"),
        *("deepspeed_exclusion_filter", "deepspeed_inclusion_filter"),
        *("deepspeed_multinode_launcher", "deepspeed_moe_layer_cls_names"),
    )
)
DEEPSPEED_LOST: Mapping[str, str] = {
    "offload_optimizer_nvme_path": "accelerate 1.15.0 does not hand it to the processes",
    "offload_param_nvme_path": "accelerate 1.15.0 does not hand it to the processes",
    "seq_parallel_communication_data_type": "accelerate does not read it; DeepSpeed's own file can",
}
DUPLICATED = (
    *("gradient_accumulation_steps", "gradient_clipping", "zero_stage"),
    *("offload_optimizer_device", "offload_param_device"),
    *("offload_optimizer_nvme_path", "offload_param_nvme_path", "zero3_save_16bit_model"),
)
"""Keys of ``deepspeed_config`` that may not stand beside ``deepspeed_config_file``."""
SHARING: Mapping[str, str] = {
    "parallelism_config_tp_size": "ranks then share their samples",
    "parallelism_config_cp_size": "ranks then share their samples",
    "parallelism_config_sp_size": "ranks then share their samples",
    "parallelism_config_dp_replicate_size": (
        "gradients are then reduced in two steps (HSDP), which no knob says"
    ),
}
"""Sizes in ``parallelism_config`` above 1 that no setup can say."""
NESTED: Mapping[str, tuple[str, frozenset[str]]] = {
    "dynamo_config": (
        "dynamo_",
        frozenset(
            ("backend", "mode", "use_fullgraph", "use_dynamic", "use_regional_compilation"),
        ),
    ),
    "fp8_config": (
        "fp8_",
        frozenset(
            (
                *("backend", "use_autocast_during_eval", "margin", "interval", "format"),
                *("amax_history_len", "amax_compute_algo", "override_linear_precision"),
                *("opt_level", "enable_fsdp_float8_all_gather", "pad_inner_dim"),
            )
        ),
    ),
}
"""Blocks to whose keys accelerate adds a prefix, and the keys without it."""
PARALLELISM = frozenset(
    f"parallelism_config_{name}"
    for name in (
        *("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_backend", "sp_size"),
        *("cp_comm_strategy", "sp_backend", "sp_seq_length", "sp_seq_length_is_variable"),
        "sp_attn_implementation",
    )
)
"""Keys of ``parallelism_config``, which accelerate reads under their full name only."""
TPU: Mapping[str, tuple[object, ...]] = {
    "downcast_bf16": ("no", False),
    "main_training_function": ("main",),
    "tpu_name": (None,),
    "tpu_zone": (None,),
    "tpu_use_cluster": (False,),
    "tpu_use_sudo": (False,),
    "tpu_vm": (None, []),
    "tpu_env": (None, []),
    "command_file": (None,),
    "commands": (None, []),
}
"""Keys that only the TPU launchers read, and what `accelerate config` writes into every file."""
