"""The budget on the command line."""

from __future__ import annotations

import pytest

from autotune.errors import UsageError
from autotune.spec import Budget, read_budget


@pytest.mark.parametrize(
    ("text", "minutes", "probes"),
    [
        ("90s", 1.5, None),
        ("2m", 2.0, None),
        ("1.5h", 90.0, None),
        ("60p", None, 60),
        ("60 probes", None, 60),
        (" 2M ", 2.0, None),
    ],
)
def test_a_budget_is_a_time_or_a_number_of_probes(
    text: str, minutes: float | None, probes: int | None
) -> None:
    assert read_budget(text) == Budget(minutes=minutes, probes=probes)


@pytest.mark.parametrize("text", ["", "2", "m", "-2m", "0m", "1.5p", "2 days", "1e9999m", "nan m"])
def test_what_is_neither_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(UsageError, match="a time such as 90s, 2m or"):
        read_budget(text)
