"""accelerate's configuration file as a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.configs.accelerate_deepspeed import understand_inline, understand_named
from autotune.configs.accelerate_fsdp import understand_fsdp
from autotune.configs.accelerate_keys import (
    BY_SCRIPT,
    GRAD_SCALER,
    MAPPINGS,
    NESTED,
    NOT_SAID,
    PARALLELISM,
    SHARING,
    TOP_LEVEL,
    TPU,
)
from autotune.configs.deepspeed_keys import TOP_LEVEL as DEEPSPEED_TOP_LEVEL
from autotune.configs.names import closest
from autotune.configs.texts import block, read_file, show
from autotune.configs.understood import Fault, Inert, Refused, Understood, texts
from autotune.configs.values import as_int

MIXED = ("no", "bf16", "fp16")
DDP_BUCKET_BYTES = 25 * 2**20
"""``bucket_cap_mb`` of DistributedDataParallel where nothing is said."""
LOCAL = "LOCAL_MACHINE"
ONE_PROCESS = ("NO", False, None)
OTHER_TYPES = (
    *("MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU"),
    *("MULTI_NEURON", "XLA", "MEGATRON_LM"),
)
"""Other types that accelerate 1.15.0 knows (``DistributedType``)."""


def read_accelerate(path: Path, folder: Path | None = None) -> Understood | Refused:
    """Reads a configuration of `accelerate config`, YAML or JSON.

    Args:
        path: The file.
        folder: Where the user starts `accelerate launch`: a DeepSpeed file that it names is looked
            for from there. The current folder by default.
    """
    parsed = read_file(path, hjson_too=False)
    if isinstance(parsed, Refused):
        return parsed
    return understand_accelerate(parsed.data, Path() if folder is None else folder)


def understand_accelerate(config: Mapping[str, Any], folder: Path) -> Understood | Refused:
    """What a configuration of accelerate says of a setup.

    Args:
        config: The parsed file.
        folder: Where a DeepSpeed file that it names is looked for.
    """
    alien = _foreign(config)
    if alien is not None:
        return Refused((alien,))
    inert = tuple(accelerate_inert(config))
    reasons = texts(accelerate_faults(config))
    found = _by_type(config, folder)
    if reasons or isinstance(found, Refused):
        others = found.reasons if isinstance(found, Refused) else ()
        return Refused((*reasons, *others), (*inert, *found.inert))
    return replace(
        found,
        kind="accelerate",
        config=config,
        inert=(*inert, *found.inert),
        notes=(*found.notes, *_notes(config)),
        script_only=(*found.script_only, *_script_only(config)),
    )


def _by_type(config: Mapping[str, Any], folder: Path) -> Understood | Refused:
    kind, mixed = config["distributed_type"], mixed_precision(config)
    if kind == "FSDP":
        return understand_fsdp(block(config, "fsdp_config"), mixed)
    if kind != "DEEPSPEED":
        return _ddp(mixed)
    values = block(config, "deepspeed_config")
    if "deepspeed_config_file" in values:
        return understand_named(values, mixed, folder)
    return understand_inline(values, mixed)


def mixed_precision(config: Mapping[str, Any]) -> str | None:
    """``mixed_precision`` as accelerate reads it; None where the file does not say it."""
    found = config.get("mixed_precision", "fp16" if config.get("fp16") else None)
    return found if isinstance(found, str) else None


def _foreign(config: Mapping[str, Any]) -> str | None:
    if "distributed_type" in config:
        return None
    if any(name in DEEPSPEED_TOP_LEVEL for name in config):
        return (
            "distributed_type is absent, and keys of DeepSpeed stand at the top level: name the "
            "file as baseline.deepspeed_config"
        )
    return "distributed_type is absent, which accelerate demands"


def accelerate_faults(config: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults at the top level of the file and of `parallelism_config`."""
    if config.get("compute_environment", LOCAL) != LOCAL:
        text = (
            f"compute_environment is {show(config['compute_environment'])}: autotune starts its "
            f"probes on this machine, as {LOCAL} does"
        )
        yield Fault("compute_environment", text, "unsaid")
        return
    for key, value in config.items():
        if key not in TOP_LEVEL:
            meant = closest(str(key), TOP_LEVEL)
            hint = f"; did you mean {meant}?" if meant else ""
            text = f"{key} is {show(value)}: accelerate does not know this key and stops{hint}"
            yield Fault(key, text, "unknown", meant)
        elif key in MAPPINGS and value is not None and not isinstance(value, dict):
            yield Fault(key, f"{key} is {show(value)}, where a mapping must stand", "type")
    yield from _type(config)
    yield from _mixed(config)
    yield from _sharing(config)


def _type(config: Mapping[str, Any]) -> Iterator[Fault]:
    kind = config.get("distributed_type")
    if kind in ONE_PROCESS:
        text = (
            "distributed_type is NO: accelerate starts a single process, which sends no "
            "gradients; use MULTI_GPU, FSDP or DEEPSPEED"
        )
        yield Fault("distributed_type", text, "unsaid")
    elif kind not in ("FSDP", "DEEPSPEED", "MULTI_GPU", "MULTI_CPU"):
        text = (
            f"distributed_type is {show(kind)}: autotune knows DEEPSPEED, FSDP, MULTI_GPU and "
            "MULTI_CPU"
        )
        yield Fault("distributed_type", text, "unsaid" if kind in OTHER_TYPES else "type")


def _mixed(config: Mapping[str, Any]) -> Iterator[Fault]:
    mixed = config.get("mixed_precision")
    if mixed is False:
        text = (
            "mixed_precision is no without quotes, which YAML reads as false and accelerate "
            'stumbles over; write "no"'
        )
        yield Fault("mixed_precision", text, "unquoted")
    elif mixed == "fp8":
        text = 'mixed_precision is "fp8": autotune knows no, bf16 and fp16'
        yield Fault("mixed_precision", text, "unsaid")
    elif mixed is not None and mixed not in MIXED:
        text = f"mixed_precision is {show(mixed)}: allowed are no, bf16 and fp16"
        yield Fault("mixed_precision", text, "type")


def _sharing(config: Mapping[str, Any]) -> Iterator[Fault]:
    sizes = block(config, "parallelism_config")
    for name, why in SHARING.items():
        size = as_int(sizes.get(name, 1))
        if size is None or size > 1:
            text = f"parallelism_config.{name} is {show(sizes[name])}: {why}"
            yield Fault(f"parallelism_config.{name}", text, "type" if size is None else "unsaid")


def _ddp(mixed: str | None) -> Understood:
    """DistributedDataParallel: autocast around an fp32 model, whose gradients are fp32."""
    knobs: dict[str, Any] = {
        "backend": "ddp",
        "zero_stage": 0,
        "grad_comm_dtype": "fp32",
        "bucket_bytes": DDP_BUCKET_BYTES,
    }
    opened = {"gradient_accumulation": BY_SCRIPT, "micro_batch": BY_SCRIPT}
    if mixed is None:
        opened["precision"] = NOT_SAID
    else:
        knobs["precision"] = "fp32" if mixed == "no" else mixed
    if mixed in ("fp16", None):
        knobs |= GRAD_SCALER
    return Understood(
        kind="accelerate",
        knobs=knobs,
        bucket_elements=None,
        gradient_accumulation=None,
        open=opened,
        config={},
        deepspeed=None,
        auto=True,
    )


def accelerate_inert(config: Mapping[str, Any]) -> Iterator[Inert]:
    """Keys outside of ``fsdp_config`` and ``deepspeed_config`` that nobody reads."""
    if config.get("enable_cpu_affinity"):
        yield Inert("enable_cpu_affinity", "accelerate 1.15.0 obeys --enable_cpu_affinity only")
    if config.get("rdzv_backend", "static") != "static":
        yield Inert("rdzv_backend", "accelerate 1.15.0 obeys --rdzv_backend only")
    yield from _of_other_types(config, config.get("distributed_type"))
    yield from _nested(config)


def _of_other_types(config: Mapping[str, Any], kind: Any) -> Iterator[Inert]:
    """Keys that only another ``distributed_type`` reads."""
    for name, owner in (("fsdp_config", "FSDP"), ("deepspeed_config", "DEEPSPEED")):
        if block(config, name) and kind != owner:
            yield Inert(name, f"distributed_type is {show(kind)}, not {owner}")
    if kind == "DEEPSPEED" and _compiles(config):
        for name in ("dynamo_config", "dynamo_backend"):
            if name in config:
                yield Inert(name, "accelerate 1.15.0 does not hand it on to DeepSpeed's processes")
    if _is_one_process(config, kind):
        for name in ("main_process_ip", "main_process_port"):
            if config.get(name) is not None:
                yield Inert(name, "a single process starts, which meets nobody")
    if kind != "XLA":
        said = (name for name, usual in TPU.items() if config.get(name, usual[0]) not in usual)
        yield from (Inert(name, "only the launcher for TPUs reads it") for name in said)


def _is_one_process(config: Mapping[str, Any], kind: Any) -> bool:
    alone = config.get("num_machines", 1) == 1 and config.get("num_processes", 1) == 1
    return kind in ONE_PROCESS and alone


def _nested(config: Mapping[str, Any]) -> Iterator[Inert]:
    for name, (prefix, keys) in NESTED.items():
        for key in block(config, name):
            if key.removeprefix(prefix) not in keys:
                yield _alien(name, key, keys)
    for key in block(config, "parallelism_config"):
        if key not in PARALLELISM:
            yield _alien("parallelism_config", key, PARALLELISM)


def _alien(name: str, key: str, known: Iterable[str]) -> Inert:
    full = f"{name}_{key}"
    meant = full if full in known else closest(key, known)
    hint = f"; did you mean {meant}?" if meant else ""
    why = f"accelerate has no such key{hint}"
    return Inert(f"{name}.{key}", why, "unknown", meant and f"{name}.{meant}")


def _notes(config: Mapping[str, Any]) -> Iterator[str]:
    if mixed_precision(config) == "no":
        yield (
            "mixed_precision is no, which a script goes past with a flag of its own (--bf16 of "
            "transformers)"
        )
    if "fp16" in config:
        yield "fp16 is an old name: accelerate reads mixed_precision"
    if "dynamo_backend" in config:
        yield "dynamo_backend is an old name: accelerate reads dynamo_config"
    if _compiles(config) and mixed_precision(config) in ("no", None):
        yield "with dynamo and without mixed_precision accelerate switches TF32 on"


def _compiles(config: Mapping[str, Any]) -> bool:
    values = block(config, "dynamo_config")
    named = values.get("dynamo_backend", values.get("backend", config.get("dynamo_backend")))
    return named is not None and str(named).upper() != "NO"


def _script_only(config: Mapping[str, Any]) -> Iterator[Inert]:
    if _compiles(config) and config.get("distributed_type") != "DEEPSPEED":
        yield Inert("dynamo_config", "torch.compile of the script's model")
