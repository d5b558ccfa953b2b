"""accelerate's configuration file: another way to start a setup of any backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from autotune.setup import Backend, Setup
from autotune.space import Restriction

TEMPLATE = "accelerate/config.yaml.j2"
FILE_NAME = "accelerate.yaml"

TYPES: Mapping[Backend, str] = {"deepspeed": "DEEPSPEED", "fsdp": "FSDP", "ddp": "MULTI_GPU"}
SECTIONS: Mapping[str, Backend] = {"deepspeed_config": "deepspeed", "fsdp_config": "fsdp"}
BESIDE_A_FILE = (
    *("gradient_accumulation_steps", "gradient_clipping", "zero_stage"),
    *("offload_optimizer_device", "offload_param_device"),
    *("offload_optimizer_nvme_path", "offload_param_nvme_path", "zero3_save_16bit_model"),
)
"""Keys that accelerate refuses beside ``deepspeed_config_file``, which says them too."""
WRITTEN = ("distributed_type", "mixed_precision", "fp16", *SECTIONS)
"""Keys at the top level that a setup sets; all others are the user's."""
FSDP_DEFAULTS: Mapping[str, Any] = {
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_offload_params": False,
}
"""What the user's own ``fsdp_config`` overrides."""
FSDP1_STRATEGIES: Mapping[int, str] = {2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
"""FSDP1's words for the stages."""
FIRST_SCALE, GROWTH_INTERVAL = 16, 2000
"""Of the ``GradScaler`` that accelerate makes; only code can change it."""
DDP_BUCKET_BYTES = 25 * 2**20
"""Of DistributedDataParallel where nothing is said; only code can change it."""


def accelerate_variables(
    setup: Setup,
    *,
    deepspeed_file: str | None = None,
    carried: Mapping[str, Any] | None = None,
    fsdp_version: Literal[1, 2] = 2,
) -> dict[str, object]:
    """Variables of accelerate's template.

    Beside the knobs: ``distributed_type``, ``mixed_precision`` (None where DeepSpeed's file says
    it, beside which accelerate refuses it), ``sections`` (mappings by name), and ``carried`` (the
    user's other keys).

    Args:
        setup: The setup.
        deepspeed_file: DeepSpeed's configuration, as a path from the folder in which
            `accelerate launch` starts; for setups of DeepSpeed only.
        carried: The user's own file, parsed; its keys stay where they are no knobs.
        fsdp_version: Which FSDP the file asks for, of a setup that FSDP2 trains.
    """
    assert (deepspeed_file is None) == (setup.backend != "deepspeed")
    own = carried or {}
    sections = {
        name: _section(own.get(name) or {}, setup, deepspeed_file, fsdp_version)
        for name, backend in SECTIONS.items()
        if backend == setup.backend
    }
    return {
        **setup.to_dict(),
        "distributed_type": _type(setup, own),
        "mixed_precision": _mixed_precision(setup),
        "sections": sections,
        "carried": {key: value for key, value in own.items() if key not in WRITTEN},
    }


def _type(setup: Setup, own: Mapping[str, Any]) -> str:
    if setup.backend == "ddp" and own.get("distributed_type") == "MULTI_CPU":
        return "MULTI_CPU"
    return TYPES[setup.backend]


def _mixed_precision(setup: Setup) -> str | None:
    if setup.backend == "deepspeed":
        return None
    return setup.precision if setup.precision in ("bf16", "fp16") else "no"


def _section(
    own: Mapping[str, Any], setup: Setup, deepspeed_file: str | None, fsdp_version: Literal[1, 2]
) -> dict[str, Any]:
    if setup.backend == "deepspeed":
        kept = {key: value for key, value in own.items() if key not in BESIDE_A_FILE}
        return {**kept, "deepspeed_config_file": deepspeed_file}
    full = {key if key.startswith("fsdp") else f"fsdp_{key}": own[key] for key in own}
    return {
        **FSDP_DEFAULTS,
        **(_of_fsdp1(setup, full) if fsdp_version == 1 else _of_fsdp2(setup, full)),
        "fsdp_activation_checkpointing": setup.activation_checkpointing,
    }


def _of_fsdp2(setup: Setup, full: Mapping[str, Any]) -> dict[str, Any]:
    return {**full, "fsdp_version": 2, "fsdp_reshard_after_forward": setup.zero_stage == 3}


def _of_fsdp1(setup: Setup, full: Mapping[str, Any]) -> dict[str, Any]:
    # accelerate 1.15.0 exports a strategy whatever the file says, and then prefers it to this key;
    # without a word on the prefetch there is none.
    kept = {key: value for key, value in full.items() if key != "fsdp_reshard_after_forward"}
    return {
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_use_orig_params": True,
        **kept,
        "fsdp_version": 1,
        "fsdp_sharding_strategy": FSDP1_STRATEGIES[setup.zero_stage],
    }


def unsaid(setup: Setup) -> Iterator[tuple[str, str]]:
    """Knobs that accelerate's file cannot say of a setup, each with what to do instead.

    DeepSpeed's own file, which it names, says the rest of a DeepSpeed setup.
    """
    if setup.precision == "tf32":
        yield "precision", "call torch.set_float32_matmul_precision('high') before training"
    if setup.activation_checkpointing and setup.backend != "fsdp":
        yield "activation_checkpointing", "let every layer recompute its forward in your model"
    if setup.backend == "deepspeed":
        return
    if setup.grad_comm_dtype != reduces_in(setup):
        yield "grad_comm_dtype", _wire_advice(setup)
    if setup.bucket_bytes not in (None, DDP_BUCKET_BYTES):
        megabytes = (setup.bucket_bytes or 0) / 2**20
        yield (
            "bucket_bytes",
            f"pass DistributedDataParallelKwargs(bucket_cap_mb={megabytes:g}) to Accelerator",
        )
    scale = setup.loss_scale
    if scale is not None and (scale.initial_power, scale.window) != (FIRST_SCALE, GROWTH_INTERVAL):
        yield (
            "loss_scale",
            f"pass GradScalerKwargs(init_scale=2.0**{scale.initial_power}, "
            f"growth_interval={scale.window}) to Accelerator",
        )
    by_script = "your script sets it"
    yield "micro_batch", by_script
    yield "gradient_accumulation", by_script


def reduces_in(setup: Setup) -> str:
    """The dtype in which accelerate reduces the gradients of FSDP2 and DDP.

    It gives FSDP2 one dtype for parameters and reduction; DDP keeps fp32 weights under autocast.
    """
    narrow = setup.backend == "fsdp" and setup.precision in ("bf16", "fp16")
    return setup.precision if narrow else "fp32"


def _wire_advice(setup: Setup) -> str:
    if setup.backend == "ddp":
        return f"register a {setup.grad_comm_dtype} compression hook on the model"
    return (
        "pass FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy="
        f"MixedPrecisionPolicy(reduce_dtype={setup.grad_comm_dtype}, ...)) to Accelerator"
    )


RESTRICTIONS = (
    Restriction(
        "accelerate-cannot-say-it",
        "accelerate's file has no key for the dtype on the wire, the bucket or the loss scale of "
        "FSDP2 and DDP",
        lambda setup, context: any(
            knob in ("grad_comm_dtype", "bucket_bytes", "loss_scale") for knob, _ in unsaid(setup)
        ),
    ),
)
"""For scripts that configure themselves by accelerate's file alone."""
