"""Findings out of the key tables: dead keys, and what ends the consumer with an error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autotune.configs.understood import Fault, Inert
from autotune.configs.values import as_float
from autotune.lint.edits import Edit, insert, put, remove, rename
from autotune.lint.finding import Finding, found, path_of
from autotune.lint.places import KeyPath, get, has

BY_CAUSE = {
    "unknown": "unknown-key",
    "removed": "ds-removed-key",
    "type": "wrong-type",
    "placeholder": "unfilled-placeholder",
    "auto": "wrong-type",
    "refused": "refused-combination",
    "batch": "ds-batch-contradiction",
    "precision": "fp16-and-bf16",
    "unquoted": "acc-no-unquoted",
    "doubled": "acc-doubled",
}
BY_KEY = {"fp16.hysteresis": "ds-hysteresis-zero", "fp16.min_loss_scale": "ds-min-scale-zero"}
"""Rules of their own for what one key says."""
LEAST = {"ds-hysteresis-zero": 2, "ds-min-scale-zero": 1}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
TRUTHS = {"true": True, "false": False}


def inert_findings(items: Iterable[Inert], data: Mapping[str, Any]) -> Iterator[Finding]:
    """A finding for each dead key."""
    for item in items:
        key = path_of(item.key, data)
        text = f"{item.key} does nothing: {item.why}"
        if item.cause == "overruled":
            yield found("ds-hysteresis-stage-0", key, text, remove(*key))
            continue
        edits = _moved(key, item.meant, data)
        yield found(_rule_of(item), key, text, *edits, inert=True)


def _rule_of(item: Inert) -> str:
    if item.cause == "unknown" and item.meant:
        return "misspelt-key"
    return "misplaced-key" if item.cause == "misplaced" else "inert-key"


def _moved(key: KeyPath, meant: str | None, data: Mapping[str, Any]) -> tuple[Edit, ...]:
    """To the key that was meant, unless that stands already; else out."""
    if meant is None:
        return (remove(*key),)
    target = tuple(meant.split("."))
    if has(data, target):
        return (remove(*key),)
    if target[:-1] == key[:-1]:
        return (rename(key, target[-1]),)
    value = get(data, key)
    if not has(data, target[:-1]):
        return (remove(*key), insert(target[:-1], {target[-1]: value}))
    if not isinstance(get(data, target[:-1]), Mapping):
        return ()
    return (remove(*key), insert(target, value))


def fault_findings(items: Iterable[Fault], data: Mapping[str, Any]) -> Iterator[Finding]:
    """A finding for each fault that is more than what no setup can say."""
    for item in items:
        key = path_of(item.key, data)
        rule = BY_KEY.get(item.key) if item.cause in ("refused", "unsafe") else None
        rule = rule or BY_CAUSE.get(item.cause)
        if rule is not None:
            yield found(rule, key, item.text, *_repaired(rule, key, item, data))


def _repaired(rule: str, key: KeyPath, item: Fault, data: Mapping[str, Any]) -> tuple[Edit, ...]:
    if rule in LEAST:
        return (put(key, LEAST[rule]),)
    if item.cause == "unknown":
        return _moved(key, item.meant, data)
    if item.cause in ("removed", "doubled", "auto"):
        return (remove(*key),)
    if item.cause == "unquoted":
        return (put(key, "no"),)
    return retyped(key, get(data, key)) if item.cause == "type" else ()


def retyped(key: KeyPath, value: Any) -> tuple[Edit, ...]:
    """The value that a text probably stands for, in its own type."""
    if not isinstance(value, str):
        return ()
    word = value.strip().lower()
    if word in TRUTHS:
        return (put(key, TRUTHS[word]),)
    if word in DTYPES and key[-1] in (
        "communication_data_type",
        "seq_parallel_communication_data_type",
    ):
        return (put(key, DTYPES[word]),)
    number = as_float(word)
    if number is None or not math.isfinite(number):
        return ()
    return (put(key, int(number) if number.is_integer() else number),)
