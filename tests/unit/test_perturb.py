"""A key is inert where every other value of it, and its absence, change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.consumer.perturb import other_values, perturb, plain, variants, without

CONFIG = {"a": 1, "b": {"c": "cpu", "d": True}, "e": [1], "f": None, "g": "auto"}


def dead(observe: Callable[[dict[str, Any]], Any], *keys: tuple[str, ...]) -> list[list[str]]:
    found = perturb(CONFIG, keys, observe)
    assert found["refused"] is None
    inert: list[list[str]] = found["inert"]
    return inert


def test_a_key_that_is_read_is_not_dead() -> None:
    assert dead(lambda config: config.get("a"), ("a",), ("f",)) == [["f"]]


def test_a_key_inside_of_a_block_is_changed_alone() -> None:
    def observe(config: dict[str, Any]) -> Any:
        return config["b"].get("c"), len(config)

    assert dead(observe, ("b", "c"), ("b", "d")) == [["b", "d"]]


def test_a_key_of_which_the_absence_matters_is_not_dead() -> None:
    assert dead(lambda config: "a" in config, ("a",)) == []


def test_a_key_that_is_read_where_it_has_another_value_is_not_dead() -> None:
    assert dead(lambda config: config.get("b", {}).get("c") == "nvme", ("b", "c")) == []


def test_a_key_that_makes_the_consumer_stop_is_not_dead() -> None:
    def observe(config: dict[str, Any]) -> None:
        if config.get("a") == 4:
            raise SystemExit("no")

    assert dead(observe, ("a",)) == []


def test_a_file_that_is_refused_as_it_is_tells_nothing_of_its_keys() -> None:
    def observe(config: dict[str, Any]) -> None:
        raise ValueError("bad file")

    found = perturb(CONFIG, [("a",)], observe)
    assert found == {"refused": "ValueError: bad file", "inert": [], "tried": 1}


def test_the_consumer_cannot_change_the_file_for_the_next_question() -> None:
    def observe(config: dict[str, Any]) -> Any:
        config.pop("a", None)
        return dict(config)

    assert dead(observe, ("a",), ("f",)) == [["a"]]


@pytest.mark.parametrize("value", [True, 0, 3, 0.5, "cpu", "auto", "any", [], [1], {}, None])
def test_every_value_has_others(value: Any) -> None:
    others = list(other_values(value))
    assert others
    assert all(other != value or type(other) is not type(value) for other in others)


def test_a_word_that_stands_for_one_of_a_few_becomes_another_of_them() -> None:
    assert set(other_values("BACKWARD_PRE")) == {"BACKWARD_POST", "NO_PREFETCH"}


def test_variants_leave_the_other_keys_alone() -> None:
    for changed in variants(CONFIG, ("b", "d")):
        assert {**changed, "b": None} == {**CONFIG, "b": None}
        assert changed["b"]["c"] == "cpu"
    assert CONFIG["b"] == {"c": "cpu", "d": True}


def test_keys_can_be_left_out_that_stand_nowhere() -> None:
    assert without(CONFIG, [("x", "y"), ("a",), ("b", "c")])["b"] == {"d": True}


def test_whatever_a_consumer_makes_can_be_compared() -> None:
    class Model:
        def model_dump(self) -> dict[str, Any]:
            return {"x": (1, 2)}

    assert plain({"m": Model(), "f": plain, 1: {2}}) == {"m": {"x": [1, 2]}, "f": "plain", "1": [2]}
