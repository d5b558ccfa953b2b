"""Small files for the rules of the lint, and what it finds in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.lint.checks import findings_in
from autotune.lint.document import Document, parse_document
from autotune.lint.finding import Finding
from autotune.lint.kinds import Kind

VERSIONS = {"deepspeed": "0.19.8", "accelerate": "1.15.0", "transformers": "5.24.0"}


@dataclass(frozen=True)
class Case:
    """A file and its twin.

    Attributes:
        kind: Whose files they are.
        bad: The file that the rule finds.
        good: The file that it does not find.
        line: Where it finds it.
        versions: What the files are for.
    """

    kind: Kind
    bad: str
    good: str
    line: int
    versions: Mapping[str, str] = field(default_factory=lambda: VERSIONS)


def document(text: str) -> Document:
    found = parse_document(text, is_yaml=not text.lstrip().startswith(("{", "//")))
    assert isinstance(found, Document), found
    return found


def findings(kind: Kind, text: str, versions: Mapping[str, str] = VERSIONS) -> list[Finding]:
    return findings_in(document(text), kind, versions)


def rules(kind: Kind, text: str, versions: Mapping[str, str] = VERSIONS) -> list[str]:
    return [item.rule.id for item in findings(kind, text, versions)]


def deepspeed(*, line: int = 1, bad: Any, good: Any, **others: Any) -> Case:
    """Two DeepSpeed configurations, one key a line."""
    return Case("deepspeed", lines(bad), lines(good), line, **others)


def lines(config: Mapping[str, Any]) -> str:
    """JSON with one top-level key a line, so that a key's line is its position plus 1."""
    inner = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in config.items())
    return f"{{\n{inner}\n}}\n"


BATCH = {"train_micro_batch_size_per_gpu": 2}
WIRE = {"communication_data_type": "bf16"}


def zero(stage: int, **others: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **others}}


def fp16(**others: Any) -> dict[str, Any]:
    return {"fp16": {"enabled": True, **others}}


def fsdp1(*keys: str) -> str:
    return "\n".join(
        ["distributed_type: FSDP", "fsdp_config:", "  fsdp_version: 1", *(f"  {k}" for k in keys)]
    )


def fsdp2(*keys: str) -> str:
    return fsdp1(*keys).replace("version: 1", "version: 2")


OLD = {"deepspeed": "0.18.9"}
