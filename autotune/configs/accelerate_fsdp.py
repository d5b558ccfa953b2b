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
from autotune.configs.understood import (
    Cause,
    Fault,
    Inert,
    Refused,
    Understood,
    texts,
)
from autotune.configs.values import BOOL_TEXTS, as_int

WRAPS = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
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
    inert = tuple(fsdp_inert(values))
    reasons = texts(fsdp_faults(values))
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


def fsdp_faults(values: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong in ``fsdp_config``, under the file's own spelling of each key."""
    spelt = {full(key): key for key in values}
    named = {full(key): value for key, value in values.items()}
    version = as_int(named.get("fsdp_version", 1))
    for name, text, cause in (
        *_version(named, version),
        *_values(named),
        *_combined(named, version),
    ):
        yield Fault(f"fsdp_config.{spelt.get(name, name)}", f"fsdp_config.{text}", cause)


Found = Iterator[tuple[str, str, Cause]]


def _version(named: Mapping[str, Any], version: int | None) -> Found:
    if version == 2:
        return
    said = show(named["fsdp_version"]) if "fsdp_version" in named else "absent, which means 1"
    text = f"fsdp_version is {said}: autotune knows version 2; {CONVERT}"
    yield "fsdp_version", text, "unsaid" if version == 1 else "type"


def _values(named: Mapping[str, Any]) -> Found:
    for key in TRUTHS:
        if key in named and str(named[key]).lower() not in BOOL_TEXTS and not _strategy(named, key):
            yield key, f"{key} is {show(named[key])}, where true or false must stand", "type"
    wrap = str(named.get("fsdp_auto_wrap_policy", "NO_WRAP")).upper()
    if wrap not in WRAPS:
        text = f"fsdp_auto_wrap_policy is {show(wrap)}: allowed are {', '.join(WRAPS)}"
        yield "fsdp_auto_wrap_policy", text, "type"


def _strategy(named: Mapping[str, Any], key: str) -> bool:
    """Version 1 takes the name of a sharding strategy here, which it then overrules."""
    return key == "fsdp_reshard_after_forward" and as_int(named.get("fsdp_version", 1)) == 1


def _combined(named: Mapping[str, Any], version: int | None) -> Found:
    local = str(named.get("fsdp_state_dict_type", "")).upper() in ("LOCAL_STATE_DICT", "2")
    if version == 2 and local:
        text = "fsdp_state_dict_type is LOCAL_STATE_DICT, which version 2 refuses"
        yield "fsdp_state_dict_type", text, "refused"
    offloads = "fsdp_activation_checkpointing_offload"
    if _truth(named, offloads, False):
        if not _truth(named, "fsdp_activation_checkpointing", False):
            text = f"{offloads} is true, which needs fsdp_activation_checkpointing: true"
            yield offloads, text, "refused"
        elif version == 1:
            yield offloads, f"{offloads} is true, which needs fsdp_version: 2", "refused"
    # The launcher asks for this at version 2 too, though nothing there reads the key.
    if named.get("fsdp_sync_module_states", True) is False and named.get(
        "fsdp_cpu_ram_efficient_loading", True
    ):
        text = (
            "fsdp_sync_module_states is false, which accelerate refuses beside "
            "fsdp_cpu_ram_efficient_loading: true; delete it"
        )
        yield "fsdp_sync_module_states", text, "refused"


def fsdp_inert(values: Mapping[str, Any]) -> Iterator[Inert]:
    """Keys that nobody reads, in the file's own spelling."""
    named = {full(key): value for key, value in values.items()}
    version = as_int(named.get("fsdp_version", 1))
    for key in values:
        name, place = full(key), f"fsdp_config.{key}"
        if name in FSDP_RENAMED:
            why, meant = FSDP_RENAMED[name]
            yield Inert(place, why, "renamed", meant)
        elif name not in FSDP:
            meant = closest(name, FSDP)
            hint = f"; did you mean {meant}?" if meant else ""
            why = f"accelerate has no such key{hint}"
            yield Inert(place, why, "unknown", meant and f"fsdp_config.{meant}")
        elif version == 2 and name in FSDP1_ONLY:
            yield Inert(place, FSDP1_ONLY[name])
        elif version == 1 and name == "fsdp_reshard_after_forward":
            yield Inert(place, "version 1 reads fsdp_sharding_strategy")


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
