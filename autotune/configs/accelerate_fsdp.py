"""``fsdp_config`` of accelerate's configuration file, version 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.configs.accelerate_keys import (
    BY_SCRIPT,
    FSDP,
    FSDP1_ONLY,
    FSDP_RENAMED,
    GRAD_SCALER,
    NOT_SAID,
)
from autotune.configs.names import closest
from autotune.configs.texts import show
from autotune.configs.understood import Inert, Refused, Understood
from autotune.configs.values import BOOL_TEXTS, as_int

WRAPS = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
TRUTHS = (
    *("fsdp_reshard_after_forward", "fsdp_offload_params", "fsdp_activation_checkpointing"),
    *("fsdp_activation_checkpointing_offload", "fsdp_cpu_ram_efficient_loading"),
    "fsdp_sync_module_states",
)
CONVERT = "`accelerate to-fsdp2 --config_file FILE --output_file FILE` converts it"


def understand_fsdp(values: Mapping[str, Any], mixed: str | None) -> Understood | Refused:
    """What ``fsdp_config`` and ``mixed_precision`` say of a setup.

    Args:
        values: The mapping ``fsdp_config``.
        mixed: ``no``, ``bf16`` or ``fp16``; None where the file does not say it.
    """
    named = {full(key): value for key, value in values.items()}
    inert = tuple(_inert(values, named))
    reasons = tuple(_faults(named))
    if reasons:
        return Refused(reasons, inert)
    return Understood(
        kind="accelerate",
        knobs=_knobs(named, mixed),
        bucket_elements=None,
        gradient_accumulation=None,
        open=_open(mixed),
        config={},
        deepspeed=None,
        auto=True,
        inert=inert,
        script_only=tuple(_script_only(named)),
    )


def full(key: str) -> str:
    """The key under the name that accelerate gives it."""
    return key if key.startswith("fsdp") else f"fsdp_{key}"


def _knobs(named: Mapping[str, Any], mixed: str | None) -> dict[str, Any]:
    knobs: dict[str, Any] = {
        "backend": "fsdp",
        "zero_stage": 3 if _truth(named, "fsdp_reshard_after_forward", True) else 2,
        "activation_checkpointing": _truth(named, "fsdp_activation_checkpointing", False),
    }
    if mixed is not None:
        precision = "fp32" if mixed == "no" else mixed
        knobs |= {"precision": precision, "grad_comm_dtype": precision}
    if mixed in ("fp16", None):
        knobs |= GRAD_SCALER
    return knobs


def _open(mixed: str | None) -> dict[str, str]:
    opened = {"gradient_accumulation": BY_SCRIPT, "micro_batch": BY_SCRIPT}
    if mixed is None:
        opened["precision"] = NOT_SAID
    return opened


def _truth(named: Mapping[str, Any], key: str, usual: bool) -> bool:
    return BOOL_TEXTS.get(str(named.get(key, usual)).lower(), usual)


def _faults(named: Mapping[str, Any]) -> Iterator[str]:
    version = as_int(named.get("fsdp_version", 1))
    if version != 2:
        said = show(named["fsdp_version"]) if "fsdp_version" in named else "absent, which means 1"
        yield f"fsdp_config.fsdp_version is {said}: autotune knows version 2; {CONVERT}"
        return
    for key in TRUTHS:
        if key in named and str(named[key]).lower() not in BOOL_TEXTS:
            yield f"fsdp_config.{key} is {show(named[key])}, where true or false must stand"
    wrap = str(named.get("fsdp_auto_wrap_policy", "NO_WRAP")).upper()
    if wrap not in WRAPS:
        yield f"fsdp_config.fsdp_auto_wrap_policy is {show(wrap)}: allowed are {', '.join(WRAPS)}"
    if str(named.get("fsdp_state_dict_type", "")).upper() in ("LOCAL_STATE_DICT", "2"):
        yield "fsdp_config.fsdp_state_dict_type is LOCAL_STATE_DICT, which version 2 refuses"
    yield from _pairs(named)


def _pairs(named: Mapping[str, Any]) -> Iterator[str]:
    if _truth(named, "fsdp_activation_checkpointing_offload", False) and not _truth(
        named, "fsdp_activation_checkpointing", False
    ):
        yield (
            "fsdp_config.fsdp_activation_checkpointing_offload is true, which needs "
            "fsdp_activation_checkpointing: true"
        )
    # The launcher asks for this at version 2 too, though nothing there reads the key.
    if named.get("fsdp_sync_module_states", True) is False and named.get(
        "fsdp_cpu_ram_efficient_loading", True
    ):
        yield (
            "fsdp_config.fsdp_sync_module_states is false, which accelerate refuses beside "
            "fsdp_cpu_ram_efficient_loading: true; delete it"
        )


def _inert(values: Mapping[str, Any], named: Mapping[str, Any]) -> Iterator[Inert]:
    """Keys that nobody reads, in the file's own spelling."""
    version = as_int(named.get("fsdp_version", 1))
    for key in values:
        name = full(key)
        if name in FSDP_RENAMED and not _replaced(name, named):
            yield Inert(f"fsdp_config.{key}", FSDP_RENAMED[name])
        elif name not in FSDP and name not in FSDP_RENAMED:
            meant = closest(name, FSDP)
            hint = f"; did you mean {meant}?" if meant else ""
            yield Inert(f"fsdp_config.{key}", f"accelerate has no such key{hint}")
        elif version == 2 and name in FSDP1_ONLY:
            yield Inert(f"fsdp_config.{key}", FSDP1_ONLY[name])
        elif version == 1 and name == "fsdp_reshard_after_forward":
            yield Inert(f"fsdp_config.{key}", "version 1 reads fsdp_sharding_strategy")


def _replaced(name: str, named: Mapping[str, Any]) -> bool:
    """Whether the new name stands beside the old one, so that nothing is lost."""
    return name == "fsdp_backward_prefetch_policy" and "fsdp_backward_prefetch" in named


def _script_only(named: Mapping[str, Any]) -> Iterator[Inert]:
    if _truth(named, "fsdp_offload_params", False):
        yield Inert("fsdp_config.fsdp_offload_params", "parameters and gradients on the CPU")
    if _truth(named, "fsdp_activation_checkpointing_offload", False):
        yield Inert("fsdp_config.fsdp_activation_checkpointing_offload", "checkpoints on the CPU")
    if "fsdp_ignored_modules" in named:
        yield Inert("fsdp_config.fsdp_ignored_modules", "modules that are not sharded")
    wrap = str(named.get("fsdp_auto_wrap_policy", "NO_WRAP")).upper()
    if wrap != "TRANSFORMER_BASED_WRAP":
        yield Inert("fsdp_config.fsdp_auto_wrap_policy", "autotune's own trainer shards by layer")
