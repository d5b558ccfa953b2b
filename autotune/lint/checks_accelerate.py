"""What a configuration of accelerate does that it should not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autotune.configs.accelerate import accelerate_faults, accelerate_inert, mixed_precision
from autotune.configs.accelerate_deepspeed import (
    compose,
    deepspeed_inert,
    doubled,
    inline_faults,
)
from autotune.configs.accelerate_fsdp import STRATEGIES, fsdp_faults, fsdp_inert, full
from autotune.configs.texts import block
from autotune.configs.values import AUTO, as_float, as_int
from autotune.lint import checks_deepspeed as deepspeed
from autotune.lint.checks_tables import fault_findings, inert_findings
from autotune.lint.edits import insert, remove, rename
from autotune.lint.finding import About, Check, Finding, found
from autotune.lint.places import KeyPath

Config = Mapping[str, Any]
FSDP = "fsdp_config"
HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5")
NAMED = "deepspeed_config_file"
INLINE = (deepspeed.fp16_at_stage_0, deepspeed.wire_dtype, deepspeed.fp16_sum)
"""What is asked of the configuration that accelerate composes of its own keys."""
FROM: Mapping[KeyPath, KeyPath] = {
    ("fp16", "enabled"): ("mixed_precision",),
    (): ("deepspeed_config",),
}
"""Where what accelerate composes comes from."""


def tables(config: Config, about: About) -> Iterator[Finding]:
    """Dead keys, and what ends accelerate."""
    yield from fault_findings(accelerate_faults(config), config)
    yield from inert_findings(accelerate_inert(config), config)
    kind = config.get("distributed_type")
    if "distributed_type" not in config:
        text = "distributed_type is absent, which accelerate demands"
        yield found("refused-combination", (), text)
    if kind == "FSDP":
        values = block(config, FSDP)
        yield from fault_findings(fsdp_faults(values), config)
        for item in inert_findings(fsdp_inert(values), config):
            yield _special(item, values)
    if kind == "DEEPSPEED":
        values = block(config, "deepspeed_config")
        faults = doubled(values, mixed_precision(config)) if NAMED in values else ()
        yield from fault_findings(faults or inline_faults(values), config)
        yield from inert_findings(deepspeed_inert(values), config)


def _special(item: Finding, values: Config) -> Finding:
    """Under the rule of its own that some dead keys of FSDP have."""
    key = str(item.key[-1])
    name, value = full(key), values.get(key)
    named = {full(other) for other in values}
    version = as_int(values.get("fsdp_version", values.get("version", 1)))
    hybrid = str(value).upper() in HYBRID
    if name == "fsdp_sharding_strategy" and version == 2 and hybrid:
        text = f"{key} is {value}, which version 2 reads over: it shards over all ranks"
        return found("fsdp2-hybrid", item.key, text, inert=True)
    if name == "fsdp_reshard_after_forward" and version == 1:
        text = f"{key} is {value}: version 1 goes by fsdp_sharding_strategy"
        if "fsdp_sharding_strategy" not in named:
            text += ", FULL_SHARD where it is absent"
        meant = str(value).upper() in STRATEGIES and "fsdp_sharding_strategy" not in named
        edit = rename(item.key, "fsdp_sharding_strategy") if meant else remove(FSDP, key)
        return found("fsdp1-reshard", item.key, text, edit, inert=True)
    if name == "fsdp_backward_prefetch_policy" and "fsdp_backward_prefetch" in named:
        return replace(item, level="info")  # nothing is lost
    if name == "fsdp_backward_prefetch_policy" and version == 1:
        text = f"{key} is an old name that nobody reads: nothing is prefetched in the backward"
        return replace(
            found("fsdp1-prefetch-old-name", item.key, text), edits=item.edits, inert=True
        )
    return item


def fsdp(config: Config, about: About) -> Iterator[Finding]:
    """Defaults that others have otherwise."""
    values = block(config, FSDP)
    if config.get("distributed_type") != "FSDP" or not values:
        return
    named = {full(key) for key in values}
    if "fsdp_version" not in named:
        text = "fsdp_version is absent, which means 1 to accelerate and 2 to transformers 5"
        yield found("fsdp-version-absent", (FSDP,), text, insert((FSDP, "fsdp_version"), 1))
    version = as_int(values.get("fsdp_version", values.get("version", 1)))
    prefetch = {"fsdp_backward_prefetch", "fsdp_backward_prefetch_policy"}
    if version == 1 and not prefetch & named:
        text = "fsdp_backward_prefetch is absent: nothing is prefetched in the backward"
        edit = insert((FSDP, "fsdp_backward_prefetch"), "BACKWARD_PRE")
        yield found("fsdp1-prefetch-off", (FSDP,), text, edit)


def topology(config: Config, about: About) -> Iterator[Finding]:
    """What belongs to the cluster."""
    usual = {"num_processes": (1, -1), "num_machines": (1,), "machine_rank": (0,)}
    keys = [key for key, values in usual.items() if config.get(key, values[0]) not in values]
    for key in ("main_process_ip", "main_process_port", "gpu_ids"):
        if config.get(key) not in (None, "all", 0):
            keys.append(key)
    if keys:
        says = ", ".join(f"{key} {config[key]}" for key in keys)
        yield found("acc-topology", (keys[0],), f"{says}: the file fits one cluster")


def deepspeed_keys(config: Config, about: About) -> Iterator[Finding]:
    """What accelerate makes of its own keys for DeepSpeed."""
    values = block(config, "deepspeed_config")
    if config.get("distributed_type") != "DEEPSPEED" or NAMED in values:
        return
    if as_float(values.get("gradient_clipping", AUTO)) == 0:
        key = ("deepspeed_config", "gradient_clipping")
        text = "gradient_clipping is 0, which accelerate does not hand on: DeepSpeed clips at 1.0"
        yield found("acc-clipping-zero", key, text)
    stage = as_int(values.get("zero_stage", 2))
    if stage not in (0, 1, 2, 3):
        return
    composed = compose(values, mixed_precision(config))
    for check in INLINE:
        for item in check(composed, replace(about, auto=True)):
            text = item.text
            if item.rule.id == "ds-wire-dtype-by-version":
                text += "; only a deepspeed_config_file can say it"
            yield replace(item, key=FROM.get(item.key, item.key), text=text, edits=())


def old_names(config: Config, about: About) -> Iterator[Finding]:
    """Names that accelerate converts."""
    if "fp16" in config:
        text = "fp16 is an old name: accelerate reads mixed_precision"
        yield found("old-name", ("fp16",), text, *_precision(config))
    if "dynamo_backend" in config:
        text = "dynamo_backend is an old name: accelerate reads dynamo_config"
        yield found("old-name", ("dynamo_backend",), text)


def _precision(config: Config) -> tuple[Any, ...]:
    if "mixed_precision" in config:
        return (remove("fp16"),)
    value = "fp16" if config["fp16"] else "no"
    return (remove("fp16"), insert(("mixed_precision",), value))


CHECKS: tuple[Check, ...] = (tables, fsdp, topology, deepspeed_keys, old_names)
