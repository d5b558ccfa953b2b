"""The arguments that transformers 5.24.0 knows (``TrainingArguments``), and what became of others.

Nothing checks their types: ``HfArgumentParser`` hands a YAML or JSON file to the dataclass as it
is. A test compares the lists with the installed transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

BOOLS = frozenset(
    (
        *("average_tokens_across_devices", "bf16", "fp16", "bf16_full_eval", "fp16_full_eval"),
        *("torch_compile", "use_liger_kernel", "use_cache", "auto_find_batch_size"),
        *("logging_first_step", "log_on_each_node", "logging_nan_inf_filter", "eval_on_start"),
        *("prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object"),
        *("batch_eval_metrics", "save_only_model", "save_on_each_node", "enable_jit_checkpoint"),
        *("push_to_hub", "hub_always_push", "load_best_model_at_end", "ignore_data_skip"),
        *("restore_callback_states_from_checkpoint", "full_determinism", "use_cpu", "do_train"),
        *("dataloader_drop_last", "dataloader_pin_memory", "dataloader_persistent_workers"),
        *("dataloader_in_order", "remove_unused_columns", "skip_memory_metrics", "do_eval"),
        *("do_predict", "tf32", "activation_checkpointing", "gradient_checkpointing"),
        *("disable_tqdm", "hub_private_repo", "greater_is_better", "ddp_find_unused_parameters"),
        *("ddp_broadcast_buffers", "ddp_static_graph"),
    )
)
NUMBERS = frozenset(
    (
        *("per_device_train_batch_size", "max_steps", "gradient_accumulation_steps", "seed"),
        *("per_device_eval_batch_size", "dataloader_num_workers", "ddp_timeout", "local_rank"),
        *("num_train_epochs", "learning_rate", "warmup_steps", "weight_decay", "adam_beta1"),
        *("adam_beta2", "adam_epsilon", "max_grad_norm", "label_smoothing_factor", "eval_delay"),
        *("logging_steps", "save_steps", "neftune_noise_alpha", "eval_steps", "data_seed"),
        *("torch_empty_cache_steps", "eval_accumulation_steps", "save_total_limit"),
        *("dataloader_prefetch_factor", "ddp_bucket_cap_mb"),
    )
)
OTHERS = frozenset(
    (
        *("output_dir", "optim_args", "torch_compile_backend", "torch_compile_mode", "run_name"),
        *("trackio_space_id", "trackio_bucket_id", "hub_token", "hub_model_id", "hub_revision"),
        *("metric_for_best_model", "dataloader_multiprocessing_context", "ddp_backend", "fsdp"),
        *("resume_from_checkpoint", "lr_scheduler_type", "lr_scheduler_kwargs", "deepspeed"),
        *("accelerator_config", "optim", "optim_target_modules", "report_to", "fsdp_config"),
        *("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs", "debug"),
        *("liger_kernel_config", "logging_strategy", "eval_strategy", "save_strategy"),
        *("include_num_input_tokens_seen", "log_level", "log_level_replica", "project"),
        *("train_sampling_strategy", "length_column_name", "trackio_static_space_id"),
        *("include_for_metrics", "hub_strategy", "parallelism_config", "label_names"),
    )
)
ARGUMENTS = BOOLS | NUMBERS | OTHERS
REMOVED: Mapping[str, tuple[str, str | None]] = {
    "adafactor": ("optim: adafactor is what it did", None),
    "evaluation_strategy": ("eval_strategy is its new name", "eval_strategy"),
    "fp16_backend": ("torch's own mixed precision is all there is", None),
    "fp16_opt_level": ("Apex is gone", None),
    "fsdp_min_num_params": ("fsdp_config.min_num_params is what it did", None),
    "fsdp_transformer_layer_cls_to_wrap": (
        "fsdp_config.transformer_layer_cls_to_wrap is what it did",
        None,
    ),
    "group_by_length": ("train_sampling_strategy: group_by_length is what it did", None),
    "half_precision_backend": ("torch's own mixed precision is all there is", None),
    "include_inputs_for_metrics": ("include_for_metrics is what it did", None),
    "include_tokens_per_second": ("include_num_input_tokens_seen counts tokens", None),
    "jit_mode_eval": ("it has no successor", None),
    "logging_dir": ("the environment variable TENSORBOARD_LOGGING_DIR is what it did", None),
    "mp_parameters": ("it has no successor", None),
    "no_cuda": ("use_cpu is its new name", "use_cpu"),
    "overwrite_output_dir": ("it has no successor", None),
    "past_index": ("it has no successor", None),
    "per_gpu_eval_batch_size": (
        "per_device_eval_batch_size is its new name",
        "per_device_eval_batch_size",
    ),
    "per_gpu_train_batch_size": (
        "per_device_train_batch_size is its new name",
        "per_device_train_batch_size",
    ),
    "push_to_hub_model_id": ("hub_model_id is what it did", None),
    "push_to_hub_organization": ("hub_model_id is what it did", None),
    "push_to_hub_token": ("hub_token is its new name", "hub_token"),
    "ray_scope": ("it has no successor", None),
    "save_safetensors": ("safetensors is all that is written", None),
    "torchdynamo": ("torch_compile_backend is what it did", None),
    "tpu_metrics_debug": ("it has no successor", None),
    "tpu_num_cores": ("it has no successor", None),
    "use_legacy_prediction_loop": ("it has no successor", None),
    "use_mps_device": ("it has no successor", None),
    "warmup_ratio": ("warmup_steps below 1 is a share of all steps", "warmup_steps"),
}
"""Arguments of transformers 4 that 5.24.0 no longer has: what took their place, and its name where
the value stays the same."""

FSDP = frozenset(
    (
        *("version", "reshard_after_forward", "cpu_offload", "activation_checkpointing"),
        *("cpu_ram_efficient_loading", "state_dict_type", "auto_wrap_policy", "min_num_params"),
        *("transformer_layer_cls_to_wrap", "xla", "xla_fsdp_v2", "xla_fsdp_settings"),
        "xla_fsdp_grad_ckpt",
    )
)
"""Keys of ``fsdp_config`` that ``_process_fsdp_args`` reads; each may begin with ``fsdp_``."""
FSDP1 = frozenset(
    (
        *("forward_prefetch", "backward_prefetch", "use_orig_params", "sync_module_states"),
        "limit_all_gathers",
    )
)
"""Keys that it reads at version 1 only."""
FSDP_BY_CODE = "transformers hands no such thing on; only code of the script can set it"
FSDP_DROPPED: Mapping[str, tuple[str, str | None]] = {
    "reduce_dtype": (FSDP_BY_CODE, None),
    "mixed_precision": ("transformers reads bf16 and fp16 beside fsdp_config", None),
    "mixed_precision_policy": (FSDP_BY_CODE, None),
    "param_dtype": (FSDP_BY_CODE, None),
    "offload_params": ("transformers reads cpu_offload", "cpu_offload"),
    "sharding_strategy": ("transformers reads reshard_after_forward", None),
    "backward_prefetch_policy": ("transformers reads backward_prefetch, at version 1", None),
    "activation_cpu_offload": (FSDP_BY_CODE, None),
}
"""Keys that look as if they did something, what to say of each, and the key that does it."""
FSDP_MARKS = FSDP | FSDP1 | frozenset(FSDP_DROPPED)
MARKS = frozenset(
    (
        *("output_dir", "per_device_train_batch_size", "per_device_eval_batch_size", "optim"),
        *("learning_rate", "num_train_epochs", "max_steps", "lr_scheduler_type", "warmup_steps"),
        *("warmup_ratio", "logging_steps", "save_steps", "save_strategy", "eval_strategy"),
        *("gradient_checkpointing", "activation_checkpointing", "report_to", "ddp_timeout"),
        *("ddp_bucket_cap_mb", "max_grad_norm", "deepspeed", "bf16", "fp16", "fsdp", "tf32"),
    )
)
"""Arguments by which a file for HfArgumentParser is known."""
