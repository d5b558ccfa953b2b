"""``deepspeed_config`` of accelerate's configuration file: a file, or keys of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.configs.accelerate_keys import DEEPSPEED, DEEPSPEED_LOST, DUPLICATED
from autotune.configs.deepspeed import understand_deepspeed
from autotune.configs.names import closest
from autotune.configs.texts import read_file, show
from autotune.configs.understood import Fault, Inert, Refused, Understood, texts
from autotune.configs.values import AUTO, as_float, as_int

DEVICES = ("none", "cpu", "nvme")


def understand_named(
    values: Mapping[str, Any], mixed: str | None, folder: Path
) -> Understood | Refused:
    """What a ``deepspeed_config_file`` says of a setup.

    Args:
        values: The mapping ``deepspeed_config``.
        mixed: ``mixed_precision`` of accelerate's file; None where it does not say it.
        folder: Where the file is looked for.
    """
    inert = tuple(deepspeed_inert(values))
    reasons = texts(doubled(values, mixed))
    if reasons:
        return Refused(reasons, inert)
    name = str(values["deepspeed_config_file"])
    parsed = read_file(folder / name, hjson_too=True)
    if isinstance(parsed, Refused):
        return Refused(tuple(_said_of(name, parsed.reasons)), inert)
    if not parsed.strict:
        return Refused(
            (f"{name} is no strict JSON (comments or trailing commas), which accelerate demands",),
            inert,
        )
    if "zero_optimization" not in parsed.data:
        return Refused((f"{name} has no zero_optimization, which accelerate demands",), inert)
    config = {"gradient_accumulation_steps": 1, **parsed.data}  # as accelerate completes it
    found = understand_deepspeed(config, hf=True)
    if isinstance(found, Refused):
        return Refused(tuple(_said_of(name, found.reasons)), (*inert, *found.inert))
    return replace(found, inert=(*inert, *found.inert))


def _said_of(name: str, reasons: tuple[str, ...]) -> Iterator[str]:
    return (f"deepspeed_config_file {name}: {reason}" for reason in reasons)


def doubled(values: Mapping[str, Any], mixed: str | None) -> Iterator[Fault]:
    """Keys that accelerate refuses beside ``deepspeed_config_file``."""
    for key in DUPLICATED:
        if key in values:
            place = f"deepspeed_config.{key}"
            text = (
                f"{place} stands beside deepspeed_config_file, which accelerate refuses; delete it"
            )
            yield Fault(place, text, "doubled")
    if mixed is not None:
        text = (
            f'mixed_precision is "{mixed}" beside deepspeed_config_file, which accelerate refuses; '
            "delete it and say it in DeepSpeed's file"
        )
        yield Fault("mixed_precision", text, "doubled")


def understand_inline(values: Mapping[str, Any], mixed: str | None) -> Understood | Refused:
    """What accelerate's own keys for DeepSpeed say of a setup.

    Args:
        values: The mapping ``deepspeed_config``.
        mixed: ``mixed_precision`` of accelerate's file; None where it does not say it.
    """
    inert = tuple(deepspeed_inert(values))
    reasons = texts(inline_faults(values))
    if reasons:
        return Refused(reasons, inert)
    found = understand_deepspeed(compose(values, mixed), hf=True)
    if isinstance(found, Refused):
        return Refused(found.reasons, inert)
    return replace(found, inert=inert, notes=tuple(_notes(values, found.notes)))


def _notes(values: Mapping[str, Any], notes: tuple[str, ...]) -> Iterator[str]:
    """Those of the composed configuration, in the words of accelerate's own keys."""
    yield from (note for note in notes if not note.startswith("gradient_clipping"))
    if as_float(values.get("gradient_clipping", 1)) == 0:
        yield (
            "deepspeed_config.gradient_clipping is 0, which accelerate does not pass on: DeepSpeed "
            "0.19.8 then clips at 1.0"
        )


def compose(values: Mapping[str, Any], mixed: str | None) -> dict[str, Any]:
    """The DeepSpeed configuration that accelerate's ``DeepSpeedPlugin`` makes of its keys."""
    config: dict[str, Any] = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": _size(values.get("gradient_accumulation_steps", AUTO)),
        "zero_optimization": {
            "stage": as_int(values.get("zero_stage", 2)),
            "offload_optimizer": _offload(values, "offload_optimizer"),
            "offload_param": _offload(values, "offload_param"),
            "stage3_gather_16bit_weights_on_model_save": (
                str(values.get("zero3_save_16bit_model", False)).lower() == "true"
            ),
        },
    }
    clipping = values.get("gradient_clipping", AUTO)
    if clipping == AUTO or as_float(clipping):
        config["gradient_clipping"] = AUTO if clipping == AUTO else as_float(clipping)
    return {**config, **_precision(mixed)}


def _precision(mixed: str | None) -> dict[str, Any]:
    if mixed is None:
        return {name: {"enabled": AUTO} for name in ("fp16", "bf16")}
    fp16 = {"enabled": True, "auto_cast": True} if mixed == "fp16" else {"enabled": False}
    return {"fp16": fp16, "bf16": {"enabled": mixed == "bf16"}}


def _offload(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    device = str(values.get(f"{name}_device", "none")).lower()
    # The path of the file never reaches the processes, which take "none" for it.
    return {"device": device, "nvme_path": "none" if device == "nvme" else None}


def _size(value: Any) -> int | str:
    return AUTO if value == AUTO else as_int(value) or 0


def inline_faults(values: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong in accelerate's own keys for DeepSpeed."""
    stage = as_int(values.get("zero_stage", 2))
    if stage not in (0, 1, 2, 3):
        yield _wrong(values, "zero_stage", ": allowed are 0 to 3")
    steps = values.get("gradient_accumulation_steps", AUTO)
    if steps != AUTO and not (isinstance(steps, int | str) and (as_int(steps) or 0) > 0):
        allowed = ', where a whole number from 1 or "auto" must stand'
        yield _wrong(values, "gradient_accumulation_steps", allowed)
    clipping = values.get("gradient_clipping", AUTO)
    if clipping != AUTO and (as_float(clipping) is None or isinstance(clipping, bool)):
        yield _wrong(values, "gradient_clipping", ', where a number or "auto" must stand')
    for name in ("offload_optimizer_device", "offload_param_device"):
        if str(values.get(name, "none")).lower() not in DEVICES:
            yield _wrong(values, name, ": allowed are none, cpu, nvme")


def _wrong(values: Mapping[str, Any], key: str, allowed: str) -> Fault:
    place = f"deepspeed_config.{key}"
    return Fault(place, f"{place} is {show(values[key])}{allowed}", "type")


def deepspeed_inert(values: Mapping[str, Any]) -> Iterator[Inert]:
    """Keys of ``deepspeed_config`` that nobody reads."""
    for key in values:
        place = f"deepspeed_config.{key}"
        if key in DEEPSPEED_LOST:
            yield Inert(place, DEEPSPEED_LOST[key])
        elif key not in DEEPSPEED:
            meant = closest(key, DEEPSPEED)
            hint = f"; did you mean {meant}?" if meant else ""
            why = f"accelerate has no such key{hint}"
            yield Inert(place, why, "unknown", meant and f"deepspeed_config.{meant}")
    named = "deepspeed_config_file" in values
    early = str(values.get("zero3_init_flag", False)).lower() == "true"
    if early and not named and as_int(values.get("zero_stage", 2)) != 3:
        yield Inert("deepspeed_config.zero3_init_flag", "accelerate obeys it at stage 3 only")
