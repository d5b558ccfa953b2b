"""The table of the documentation."""

from __future__ import annotations

from pathlib import Path

from autotune.export import DIALECTS
from autotune.setup import BACKENDS
from autotune.wiring.table import table

PAGE = Path(__file__).parents[2] / "docs" / "dialects.md"


def test_the_page_of_the_dialects_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == table(), "run `make docs`"


def test_it_has_a_column_for_every_dialect_of_a_backend() -> None:
    heads = [line for line in table().splitlines() if line.startswith("| knob")]
    for backend, head in zip(BACKENDS, heads, strict=True):
        names = {name for name, dialect in DIALECTS.items() if backend in dialect.backends}
        assert set(head.strip("| ").split(" | ")) == {"knob", *names}
