"""What a configuration of FSDP or DDP effectively does, of accelerate or of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.configs.values import BOOL_TEXTS, as_int
from autotune.lint.effect import SCRIPT, By, Effect, scaler

Values = Mapping[str, Any]
DDP_BUCKET_BYTES = 25 * 2**20
WRAPS = {
    "TRANSFORMER_BASED_WRAP": "one group a transformer layer",
    "SIZE_BASED_WRAP": "one group for each fsdp_min_num_params parameters",
    "NO_WRAP": "one group for the whole model",
}
PREFETCHES = {
    "BACKWARD_PRE": "the next layer is fetched before the current one's gradients",
    "BACKWARD_POST": "the next layer is fetched after the current one's gradients",
}


def fsdp_effects(
    values: Values, precision: str | None, version: int | None, *, strategy: str | None
) -> Iterator[Effect]:
    """Aspects of FSDP.

    Args:
        values: ``fsdp_config``, keys without ``fsdp_``.
        precision: Compute dtype; None where the script decides.
        version: Of FSDP; None where the file names none that exists.
        strategy: Sharding strategy that counts at version 1.
    """
    if version not in (1, 2):
        yield Effect("sharding", None, "unclear", "fsdp_version is neither 1 nor 2")
        return
    yield from computed(precision, "parameters, reduction and outputs alike")
    yield _sharding(values, version, strategy)
    yield _prefetch(values, version)
    wrap = str(values.get("auto_wrap_policy", "")).upper()
    by: By = "file" if wrap else "default"
    text = WRAPS.get(wrap, "one group a wrapped module") + "; FSDP has no buckets of bytes"
    yield Effect("buckets", None, by, text)
    yield from scaler(precision)


def computed(precision: str | None, how: str) -> Iterator[Effect]:
    """Precision, wire and accumulation where one word says them all."""
    if precision is None:
        yield Effect("precision", None, "script", SCRIPT)
        yield Effect("wire", None, "script", f"that of the precision, as {SCRIPT}")
        yield Effect("accumulation", None, "script", f"that of the precision, as {SCRIPT}")
        return
    yield Effect("precision", precision, "file", f"{precision} ({how})")
    text = f"{precision}, which no file can change: only code sets a reduce dtype"
    yield Effect("wire", precision, "default", text)
    yield Effect("accumulation", precision, "default", f"gradients add up in {precision}")


def ddp_effects(precision: str | None, bucket_bytes: int, by: By) -> Iterator[Effect]:
    """Aspects of DistributedDataParallel.

    Args:
        precision: Of autocast; None where the script decides.
        bucket_bytes: Of a gradient bucket.
        by: Who says the bucket.
    """
    if precision is None:
        yield Effect("precision", None, "script", SCRIPT)
    else:
        inside = "" if precision == "fp32" else ", autocast around fp32 parameters"
        yield Effect("precision", precision, "file", f"{precision}{inside}")
    yield Effect("wire", "fp32", "default", "fp32, unless the script adds a communication hook")
    yield Effect("accumulation", "fp32", "default", "gradients add up in fp32")
    yield Effect("sharding", 0, "file", "DDP: everything on every rank")
    yield Effect("prefetch", True, "default", "reduction overlaps the backward")
    text = f"{bucket_bytes // 2**20} MiB of gradients"
    yield Effect("buckets", bucket_bytes, by, text)
    yield from scaler(precision)


def truth(values: Values, key: str, usual: bool) -> bool:
    """A switch as the launchers read it."""
    return BOOL_TEXTS.get(str(values.get(key, usual)).lower(), usual)


def _sharding(values: Values, version: int, strategy: str | None) -> Effect:
    offload = "; parameters on the CPU" if truth(values, "offload_params", False) else ""
    offload = offload or ("; parameters on the CPU" if truth(values, "cpu_offload", False) else "")
    if version == 1:
        named = strategy or "FULL_SHARD"
        by: By = "file" if strategy else "default"
        stage = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0}.get(named)
        return Effect("sharding", stage, by, f"FSDP1 {named}{offload}")
    reshard = truth(values, "reshard_after_forward", True)
    by = "file" if "reshard_after_forward" in values else "default"
    how = "are sharded again" if reshard else "stay whole"
    text = f"FSDP2: parameters {how} after the forward{offload}"
    return Effect("sharding", 3 if reshard else 2, by, text)


def _prefetch(values: Values, version: int) -> Effect:
    if version == 2:
        return Effect("prefetch", True, "default", "FSDP2 fetches the next layer by itself")
    named = values.get("backward_prefetch")
    word = {1: "BACKWARD_PRE", 2: "BACKWARD_POST"}.get(as_int(named) or 0, str(named).upper())
    by: By = "default" if named is None else "file"
    ahead = truth(values, "forward_prefetch", False)
    forward = "; also in the forward" if ahead else ""
    text = PREFETCHES.get(word, "nothing is fetched ahead in the backward")
    return Effect("prefetch", word in PREFETCHES, by, text + forward)
