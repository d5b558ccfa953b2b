"""The command line of a script, and what a setup puts into it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autotune.placeholders import PLACEHOLDERS, fill, knob_values, placeholders_in, unknown
from tests.build import make_setup


def test_every_placeholder_is_replaced_wherever_it_stands() -> None:
    command = ("train.py", "--config={deepspeed_config}", "--bf16", "{bf16}", "{bf16}")
    filled = fill(command, {"deepspeed_config": "a b.json", "bf16": "true"})
    assert filled == ["train.py", "--config=a b.json", "--bf16", "true", "true"]


def test_json_arguments_and_doubled_braces_stay() -> None:
    command = ('{"lr": 1e-4, "betas": {}}', "{{bf16}}", "${HOME}", "{1}")
    assert placeholders_in(command) == ("HOME",)
    assert fill(command, {"HOME": "x"}) == ['{"lr": 1e-4, "betas": {}}', "{bf16}", "$x", "{1}"]


def test_unknown_names_are_found_once() -> None:
    assert list(unknown(["{lr}", "{bf16}", "{lr}"])) == ["lr"]


def test_a_setup_says_its_precision_in_every_dialect() -> None:
    half = knob_values(make_setup(precision="bf16"))
    assert (half["precision"], half["mixed_precision"]) == ("bf16", "bf16")
    assert (half["bf16"], half["fp16"], half["tf32"]) == ("true", "false", "false")
    single = knob_values(make_setup(precision="tf32"))
    assert (single["mixed_precision"], single["tf32"]) == ("no", "true")


def test_batches_follow_the_setup() -> None:
    values = knob_values(replace(make_setup(), micro_batch=3, gradient_accumulation=5))
    assert (values["micro_batch"], values["gradient_accumulation"]) == ("3", "5")


@given(st.text(alphabet=st.characters(blacklist_characters="{}")))
def test_a_word_without_braces_is_never_changed(word: str) -> None:
    assert fill([word], dict.fromkeys(PLACEHOLDERS, "x")) == [word]
