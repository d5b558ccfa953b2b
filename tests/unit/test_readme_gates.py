"""The table of gates in the README is that of the code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.numerics.thresholds import GATES, NUMBERED, THRESHOLDS, GateName, show_number

README = (Path(__file__).parents[2] / "README.md").read_text()
ROWS = dict(re.findall(r"^\| `([a-z-]+)` \| (.*?) \|", README, re.MULTILINE))


def test_every_gate_has_a_row() -> None:
    assert set(GATES) == {name for name in ROWS if name in GATES}


@pytest.mark.parametrize("gate", NUMBERED)
def test_every_default_limit_is_in_its_row(gate: GateName) -> None:
    threshold = THRESHOLDS[gate]
    limits = threshold.limit
    numbers = limits.values() if isinstance(limits, Mapping) else [limits]
    for number in numbers:
        assert number is not None
        assert show_number(number, threshold.unit) in ROWS[gate]
