"""DeepSpeed's configuration file as a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.configs.deepspeed_blocks import bf16_block, switch, zero_stage
from autotune.configs.deepspeed_faults import faults, foreign
from autotune.configs.deepspeed_inert import fills, inert_keys, notes, script_only
from autotune.configs.deepspeed_says import (
    ACCUMULATION,
    MICRO,
    TRAIN,
    accumulation,
    bucket_elements,
    loss_scale,
    overlap,
    precision,
    size,
    wire,
)
from autotune.configs.texts import block, read_file
from autotune.configs.understood import Refused, Understood, texts
from autotune.configs.values import AUTO
from autotune.setup import DTYPE_BYTES, WireDtype

FLAGS = "the script's flags decide"


def read_deepspeed(path: Path) -> Understood | Refused:
    """Reads a DeepSpeed configuration, JSON or YAML.

    JSON may have comments and trailing commas, as DeepSpeed reads it.

    Args:
        path: The file.
    """
    parsed = read_file(path, hjson_too=True)
    if isinstance(parsed, Refused):
        return parsed
    return understand_deepspeed(parsed.data, strict=parsed.strict)


def understand_deepspeed(
    config: Mapping[str, Any], *, strict: bool = True, hf: bool = False
) -> Understood | Refused:
    """What a DeepSpeed configuration says of a setup.

    Args:
        config: The parsed configuration.
        strict: Whether its text is strict JSON.
        hf: Whether accelerate reads it, even where nothing in it is ``"auto"``.
    """
    if not config:
        return Refused(("holds no key; name your knobs in baseline instead",))
    alien = foreign(config)
    if alien is not None:
        return Refused((alien,))
    inert = tuple(inert_keys(config))
    reasons = texts(faults(config))
    if reasons:
        return Refused(reasons, inert)
    auto = hf or fills(config)
    opened = dict(_open(config, auto))
    return Understood(
        kind="deepspeed",
        knobs=_knobs(config, auto),
        bucket_elements=bucket_elements(config),
        gradient_accumulation=accumulation(config),
        open=opened,
        config=config,
        deepspeed=config,
        auto=auto,
        inert=inert,
        notes=tuple(notes(config, strict)),
        script_only=tuple(script_only(config)),
    )


def _knobs(config: Mapping[str, Any], auto: bool) -> dict[str, Any]:
    """What the file determines, DeepSpeed's defaults where it says nothing."""
    knobs: dict[str, Any] = {"backend": "deepspeed"}
    computed, stage = precision(config, auto=auto), zero_stage(config)
    sent = wire(config, computed)
    if computed is not None:
        knobs["precision"] = computed
    if sent is not None:
        knobs["grad_comm_dtype"] = sent
    if stage is not None:
        knobs["zero_stage"] = stage
    if stage is None or stage > 0:
        knobs |= _bucket(config, sent) | _overlap(config, stage)
    # From train_batch_size it follows on the user's ranks, which are not those of a probe.
    micro = size(config, MICRO)
    if micro is not None:
        knobs["micro_batch"] = micro
    if switch(config, "fp16", hf=auto) != "off" and computed in ("fp16", None):
        scale = loss_scale(block(config, "fp16"), stage)
        knobs |= {f"loss_scale.{field}": value for field, value in scale.items()}
    return knobs


def _bucket(config: Mapping[str, Any], sent: WireDtype | None) -> dict[str, int | None]:
    elements = bucket_elements(config)
    if elements is None:
        return {"bucket_bytes": None}
    return {} if sent is None else {"bucket_bytes": elements * DTYPE_BYTES[sent]}


def _overlap(config: Mapping[str, Any], stage: int | None) -> dict[str, bool]:
    found = overlap(config, stage)
    return {} if found is None else {"overlap_comm": found}


def _open(config: Mapping[str, Any], auto: bool) -> Iterator[tuple[str, str]]:
    """Knobs that the file leaves open, and why."""
    if precision(config, auto=auto) is None:
        yield "precision", _open_precision(config)
    if zero_stage(config) is None:
        yield (
            "zero_stage",
            'zero_optimization.stage is "auto": accelerate makes 2 of it, DeepSpeed alone 0',
        )
    if size(config, MICRO) is None:
        yield "micro_batch", _open_size(config, MICRO)
    if accumulation(config) is None:
        yield "gradient_accumulation", _open_size(config, ACCUMULATION)


def _open_precision(config: Mapping[str, Any]) -> str:
    blocks = {"fp16": block(config, "fp16"), "bf16": bf16_block(config)}
    autos = [f"{name}.enabled" for name, values in blocks.items() if values.get("enabled") == AUTO]
    if autos:
        verb = "are" if len(autos) > 1 else "is"
        return f'{" and ".join(autos)} {verb} "auto": {FLAGS}'
    return f"fp16 and bf16 are not both named, so that {FLAGS}"


def _open_size(config: Mapping[str, Any], name: str) -> str:
    if config.get(name) == AUTO:
        return f'{name} is "auto": {FLAGS}'
    if size(config, TRAIN) is not None:
        return f"train_batch_size is {config[TRAIN]}: {name} follows from it and your ranks"
    return f"{name} is absent: {FLAGS}"
