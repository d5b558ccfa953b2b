"""DeepSpeed's configuration file as a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.configs.deepspeed_blocks import (
    BUCKET_ELEMENTS,
    bf16_block,
    switch,
    zero_block,
    zero_stage,
)
from autotune.configs.deepspeed_faults import faults, foreign
from autotune.configs.deepspeed_inert import fills, inert_keys, notes, script_only
from autotune.configs.deepspeed_keys import BATCH
from autotune.configs.texts import block, read_file
from autotune.configs.understood import Refused, Understood
from autotune.configs.values import AUTO, as_bool, as_int
from autotune.setup import DTYPE_BYTES, WireDtype

TRAIN, MICRO, ACCUMULATION = BATCH
SCALE_KEYS: Mapping[str, tuple[str, int]] = {
    "initial_power": ("initial_scale_power", 16),
    "window": ("loss_scale_window", 1000),
    "hysteresis": ("hysteresis", 2),
    "minimum": ("min_loss_scale", 1),
}
"""Key and default in ``fp16`` of each field of a loss scale (``DeepSpeedFP16Config``)."""
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
    reasons = tuple(faults(config))
    if reasons:
        return Refused(reasons, inert)
    auto = hf or fills(config)
    opened = dict(_open(config, auto))
    return Understood(
        kind="deepspeed",
        knobs=_knobs(config, auto),
        bucket_elements=_bucket_elements(config),
        gradient_accumulation=_accumulation(config),
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
    precision, stage = _precision(config, auto), zero_stage(config)
    wire = _wire(config, precision)
    if precision is not None:
        knobs["precision"] = precision
    if wire is not None:
        knobs["grad_comm_dtype"] = wire
    if stage is not None:
        knobs["zero_stage"] = stage
    if stage is None or stage > 0:
        knobs |= _bucket(config, wire) | _overlap(config, stage)
    micro = _micro_batch(config)
    if micro is not None:
        knobs["micro_batch"] = micro
    if switch(config, "fp16", hf=auto) != "off" and precision in ("fp16", None):
        knobs |= _loss_scale(block(config, "fp16"), stage)
    return knobs


def _precision(config: Mapping[str, Any], auto: bool) -> str | None:
    fp16, bf16 = switch(config, "fp16", hf=auto), switch(config, "bf16", hf=auto)
    if "on" in (fp16, bf16):
        return "fp16" if fp16 == "on" else "bf16"
    return None if "script" in (fp16, bf16) else "fp32"


def _wire(config: Mapping[str, Any], precision: str | None) -> WireDtype | None:
    named = config.get("communication_data_type")
    if named is not None:
        found: WireDtype = named.lower()
        return found
    return follows(precision)


def follows(precision: str | None) -> WireDtype | None:
    """The dtype on the wire where none is named: that of the precision."""
    if precision is None:
        return None
    return "bf16" if precision == "bf16" else "fp16" if precision == "fp16" else "fp32"


def _bucket_elements(config: Mapping[str, Any]) -> int | None:
    value = zero_block(config).get("reduce_bucket_size", BUCKET_ELEMENTS)
    return None if value == AUTO else as_int(value)


def _bucket(config: Mapping[str, Any], wire: WireDtype | None) -> dict[str, int | None]:
    elements = _bucket_elements(config)
    if elements is None:
        return {"bucket_bytes": None}
    return {} if wire is None else {"bucket_bytes": elements * DTYPE_BYTES[wire]}


def _overlap(config: Mapping[str, Any], stage: int | None) -> dict[str, bool]:
    named = zero_block(config).get("overlap_comm")
    if named is None or named == AUTO:
        return {} if stage is None else {"overlap_comm": stage == 3}
    return {"overlap_comm": bool(as_bool(named))}


def _micro_batch(config: Mapping[str, Any]) -> int | None:
    # From train_batch_size it follows on the user's ranks, which are not those of a probe.
    return _size(config, MICRO)


def _accumulation(config: Mapping[str, Any]) -> int | None:
    named = _size(config, ACCUMULATION)
    if named is not None or config.get(ACCUMULATION) == AUTO:
        return named
    given = [config.get(name) for name in (TRAIN, MICRO)]
    if all(value is not None and value != AUTO for value in given):
        return None
    return 1


def _size(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return None if value is None or value == AUTO else as_int(value)


def _loss_scale(fp16: Mapping[str, Any], stage: int | None) -> dict[str, int]:
    found = {}
    for field, (key, usual) in SCALE_KEYS.items():
        if field == "hysteresis" and stage == 0:
            continue  # stage 0 has none
        value = fp16.get(key, usual)
        found[f"loss_scale.{field}"] = usual if value == AUTO else as_int(value) or 0
    return found


def _open(config: Mapping[str, Any], auto: bool) -> Iterator[tuple[str, str]]:
    """Knobs that the file leaves open, and why."""
    if _precision(config, auto) is None:
        yield "precision", _open_precision(config)
    if zero_stage(config) is None:
        yield (
            "zero_stage",
            'zero_optimization.stage is "auto": accelerate makes 2 of it, DeepSpeed alone 0',
        )
    if _micro_batch(config) is None:
        yield "micro_batch", _open_size(config, MICRO)
    if _accumulation(config) is None:
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
    if _size(config, TRAIN) is not None:
        return f"train_batch_size is {config[TRAIN]}: {name} follows from it and your ranks"
    return f"{name} is absent: {FLAGS}"
