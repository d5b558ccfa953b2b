"""The store keeps every kind of finding as it is."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.numerics.findings import Examined, Finding, Missing
from autotune.search import Store
from tests.findings import make_findings, make_wires
from tests.readings import make_gradient_reading

SOUND = make_findings()


def reopened(folder: Path) -> dict[str, Finding]:
    return Store(folder, create=False).findings()


def test_a_store_gives_back_every_kind_of_finding_in_order(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    assert store.findings() == {}
    for name, finding in SOUND.items():
        store.find(name, finding)
    found = reopened(tmp_path)
    assert found == SOUND
    assert list(found) == list(SOUND)
    assert {type(item).__name__ for item in found.values()} == {
        *("Communication", "WireErrors", "ScaleTrace", "ScaleChoice", "Examined", "Missing")
    }


def test_numbers_that_are_infinite_or_none_survive(tmp_path: Path) -> None:
    reading = make_gradient_reading(activation_absmax=math.inf, losses=(math.nan, 1.0))
    store = Store(tmp_path, create=True)
    store.find("gates x", Examined(setup="x", reading=reading))
    store.find("wires", make_wires(math.inf))
    found = reopened(tmp_path)
    examined = found["gates x"]
    assert isinstance(examined, Examined)
    assert examined.reading.activation_absmax == math.inf
    assert math.isnan(examined.reading.losses[0])
    assert replace(examined.reading, losses=reading.losses) == reading
    assert found["wires"] == make_wires(math.inf)


@pytest.mark.parametrize("first", [Missing(reason="hang"), make_wires()])
def test_a_later_finding_of_the_same_name_replaces_the_first(
    tmp_path: Path, first: Finding
) -> None:
    store = Store(tmp_path, create=True)
    store.find("wires", first)
    store.find("other", Missing(reason="crash"))
    store.find("wires", make_wires(0.02))
    found = reopened(tmp_path)
    assert found["wires"] == make_wires(0.02)
    assert list(found) == ["wires", "other"]


def test_findings_are_no_probes(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    store.find("x", Missing(reason="crash"))
    assert store.probes() == []
