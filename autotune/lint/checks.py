"""All findings in a document, out of the tables and the checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from autotune.configs.deepspeed_faults import faults
from autotune.configs.deepspeed_inert import fills, inert_keys
from autotune.configs.texts import block
from autotune.lint import (
    checks_accelerate,
    checks_deepspeed,
    checks_deepspeed_keys,
    checks_fsdp,
    checks_huggingface,
)
from autotune.lint.checks_tables import fault_findings, inert_findings
from autotune.lint.document import Document
from autotune.lint.edits import Edit
from autotune.lint.finding import About, Finding, found, place_of, under
from autotune.lint.kinds import Kind
from autotune.lint.places import dotted
from autotune.lint.versions import applies

Config = Mapping[str, Any]
FOR_OTHERS = ("ds-auto", "ds-not-strict")
"""Of no matter where transformers reads the configuration out of its own file."""


def findings_in(document: Document, kind: Kind, versions: Mapping[str, str]) -> list[Finding]:
    """Findings of the rules that are about these versions, in the order of the lines."""
    config = document.data
    auto = kind != "deepspeed" or fills(config)
    about = About(auto=auto, strict=document.format != "hjson", versions=versions)
    items = [*_duplicates(document), *_of_kind(kind, config, about)]
    chosen = [item for item in items if applies(item.rule.versions, versions)]
    return in_order(document, _distinct(chosen))


def in_order(document: Document, items: Iterable[Finding]) -> list[Finding]:
    """Findings from the first line to the last."""
    return sorted(items, key=lambda item: _order(document, item))


def _order(document: Document, item: Finding) -> tuple[int, int, str]:
    place = place_of(document, item)
    return place.line, place.column, item.rule.id


def _distinct(items: list[Finding]) -> list[Finding]:
    """One finding of a rule for a key."""
    return list({(item.rule.id, item.key): item for item in reversed(items)}.values())


def _duplicates(document: Document) -> Iterator[Finding]:
    for entry in document.twice:
        text = f"{dotted(entry.path)} stands twice: the last one counts, where it is read at all"
        item = found("duplicate-key", entry.path, text, Edit("first", entry.path))
        yield replace(item, span=entry.key)


def _of_kind(kind: Kind, config: Config, about: About) -> Iterator[Finding]:
    if kind == "deepspeed":
        yield from deepspeed_findings(config, about)
    elif kind == "accelerate":
        for check in checks_accelerate.CHECKS:
            yield from check(config, about)
    elif kind == "fsdp":
        yield from _fsdp(config, about)
    else:
        yield from _huggingface(config, about)


def deepspeed_findings(config: Config, about: About) -> Iterator[Finding]:
    """Of DeepSpeed's configuration, wherever it stands."""
    yield from fault_findings(faults(config), config)
    yield from inert_findings(inert_keys(config), config)
    for check in (*checks_deepspeed.CHECKS, *checks_deepspeed_keys.CHECKS):
        yield from check(config, about)


def _fsdp(values: Config, about: About) -> Iterator[Finding]:
    for check in checks_fsdp.CHECKS:
        yield from check(values, about)


def _huggingface(config: Config, about: About) -> Iterator[Finding]:
    for check in checks_huggingface.CHECKS:
        yield from check(config, about)
    values, fsdp = block(config, "fsdp_config"), config.get("fsdp")
    if values and fsdp:
        yield from under(("fsdp_config",), _fsdp(values, about))
    if isinstance(fsdp, str | list) and fsdp:
        yield from checks_fsdp.words(fsdp, values, about)
    inner = block(config, "deepspeed")
    if inner:
        for item in under(("deepspeed",), deepspeed_findings(inner, about)):
            if item.rule.id not in FOR_OTHERS:
                yield item
