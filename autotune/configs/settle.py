"""A file's knobs and those that the sweep file names beside it, as one baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.configs.deepspeed_blocks import PRECISIONS, switch
from autotune.configs.deepspeed_says import follows
from autotune.configs.texts import show
from autotune.configs.understood import Refused, Understood
from autotune.setup import DTYPE_BYTES

NEEDED = ("precision", "zero_stage")
"""Knobs without which nothing can be compared; batches are the workload's."""


def settle(understood: Understood, named: Mapping[str, Any]) -> dict[str, Any] | Refused:
    """Every knob of today's setup that the file or the sweep file tells, for `make_baseline`.

    Args:
        understood: The file.
        named: Knobs that stand beside it in ``baseline``.

    Returns:
        The knobs; or the contradictions, and the knobs that are still open.
    """
    reasons = [*_contradictions(understood, named), *_missing(understood, named)]
    if reasons:
        return Refused(tuple(reasons))
    knobs = {**understood.knobs, **named}
    if "grad_comm_dtype" not in knobs:
        knobs["grad_comm_dtype"] = follows(knobs["precision"])
    stage, elements = knobs["zero_stage"], understood.bucket_elements
    if stage > 0 and "bucket_bytes" not in knobs and elements is not None:
        knobs["bucket_bytes"] = elements * DTYPE_BYTES[knobs["grad_comm_dtype"]]
    if stage > 0 and "overlap_comm" not in knobs and knobs["backend"] == "deepspeed":
        knobs["overlap_comm"] = stage == 3
    return knobs


def _contradictions(understood: Understood, named: Mapping[str, Any]) -> Iterator[str]:
    for name, value in named.items():
        told = understood.knobs.get(name)
        if told is not None and told != value and not _finer(name, told, value):
            yield (
                f"baseline.{name} is {show(value)}, but the {understood.kind} file says "
                f"{show(told)}; delete one of them"
            )
    yield from _switched_off(understood, named.get("precision"))


def _switched_off(understood: Understood, precision: Any) -> Iterator[str]:
    """An open precision may be one that the file rules out."""
    if understood.deepspeed is None or "precision" in understood.knobs:
        return
    for name in PRECISIONS:
        off = switch(understood.deepspeed, name, hf=understood.auto) == "off"
        if precision == name and off:
            yield f"baseline.precision is {name}, but {name}.enabled is false in the file"


def _finer(name: str, told: Any, value: Any) -> bool:
    """TF32 is fp32 to a file: torch switches it on, not the file."""
    return name == "precision" and (told, value) == ("fp32", "tf32")


def _missing(understood: Understood, named: Mapping[str, Any]) -> Iterator[str]:
    for name in NEEDED:
        if name in understood.open and name not in named:
            yield f"baseline.{name} is needed: {understood.open[name]}"
