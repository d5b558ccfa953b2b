from __future__ import annotations

from typing import Any

import pytest

from autotune.spec.faults import report
from autotune.spec.yaml_reader import MOST_NODES, REFUSED, read_yaml

MEANINGS: dict[str, Any] = {
    "true": True,
    "False": False,
    "yes": "yes",
    "no": "no",
    "on": "on",
    "off": "off",
    "y": "y",
    "n": "n",
    "null": None,
    "~": None,
    "": None,
    "None": "None",
    "0": 0,
    "-7": -7,
    "+7": 7,
    "9223372036854775807": 2**63 - 1,
    "1e-5": 1e-5,
    "25e6": 25e6,
    "2E6": 2e6,
    "1.5e3": 1.5e3,
    "1.": 1.0,
    ".5": 0.5,
    "00.5": 0.5,
    "12:30": "12:30",
    "1:30:00": "1:30:00",
    "2024-01-31": "2024-01-31",
    "1.2.3": "1.2.3",
    "1%": "1%",
    "e5": "e5",
    "0x": "0x",
    "1_": "1_",
    "=": "=",
    "'1'": "1",
    '"true"': "true",
    '"a\\tb"': "a\tb",
    "a: b": {"a": "b"},
    "٣": "٣",  # a digit, but not ASCII
}


@pytest.mark.parametrize(("text", "meant"), MEANINGS.items(), ids=[repr(key) for key in MEANINGS])
def test_a_scalar_is_read_as_a_person_means_it(text: str, meant: Any) -> None:
    document = read_yaml(f"key:\n  {text}\n")
    assert document.faults == ()
    assert document.data == {"key": meant}
    assert type(document.data["key"]) is type(meant)


@pytest.mark.parametrize("text", ["017", "-08", "0o17", "0x1F", "0b11", "1_000", "00"])
def test_a_number_that_programs_disagree_about_is_refused(text: str) -> None:
    document = read_yaml(f"key: {text}\n")
    assert report("f", document.faults) == (
        f"f:1: key: '{text}' is read as different numbers by different programs; "
        "write decimal digits without a leading zero, or put it in quotes if it is text"
    )
    assert document.data == {"key": REFUSED}


@pytest.mark.parametrize("text", [".nan", ".NaN", ".inf", "-.inf", "+.INF"])
def test_a_number_that_is_not_finite_is_refused(text: str) -> None:
    (fault,) = read_yaml(f"key: {text}\n").faults
    assert fault.words == f"{text} is not a finite number; put it in quotes if it is text"


@pytest.mark.parametrize("text", ["1e999", "-1e999", "9223372036854775808", "9" * 10_000])
def test_a_number_beyond_64_bits_is_refused(text: str) -> None:
    (fault,) = read_yaml(f"key: {text}\n").faults
    assert fault.words.endswith("is too large a number; put it in quotes if it is text")
    assert len(fault.words) < 150


def test_every_value_knows_its_line() -> None:
    document = read_yaml("# first\na:\n  b: [1,\n    2]\n  c:\n    - x: 3\n    - y\n")
    assert document.data == {"a": {"b": [1, 2], "c": [{"x": 3}, "y"]}}
    assert document.lines == {
        (): 1,
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "b", 0): 3,
        ("a", "b", 1): 4,
        ("a", "c"): 5,
        ("a", "c", 0): 6,
        ("a", "c", 0, "x"): 6,
        ("a", "c", 1): 7,
    }


def test_what_is_missing_stands_where_its_section_begins() -> None:
    document = read_yaml("x: 1\na:\n  b: 1\n")
    assert document.line(("a", "c", "d")) == 2
    assert document.line(("z",)) == 1


def test_an_alias_is_the_value_of_its_anchor() -> None:
    assert read_yaml("a: &x [1, 2]\nb: *x\n").data == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize(
    "text",
    ["a: &x [*x]", "a: &x {b: *x}", "a: &x\n  b: &y\n    c: [*x, *y]"],
)
def test_an_alias_inside_its_own_anchor_is_refused(text: str) -> None:
    faults = read_yaml(text).faults
    assert faults
    assert {fault.words for fault in faults} == {"an alias inside what it stands for; write it out"}


def test_a_key_given_twice_is_refused_with_both_lines_and_keeps_the_first() -> None:
    document = read_yaml("a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert report("f", document.faults) == (
        "f:4: a.b: the key stands twice, first in line 2; keep one"
    )
    assert document.data == {"a": {"b": 1, "c": 2}}


def test_keys_that_differ_in_quotes_alone_are_the_same_key() -> None:
    (fault,) = read_yaml("a: 1\n'a': 2\n").faults
    assert fault.words == "the key stands twice, first in line 1; keep one"


@pytest.mark.parametrize(
    "tag",
    ["!!python/name:os.system", "!custom", "!!str", "!", "!<tag:yaml.org,2002:int>", "!a%0Ab"],
)
def test_any_tag_is_refused(tag: str) -> None:
    text = report("f", read_yaml(f"a: {tag} 1\n").faults)
    assert text.startswith("f:1: a: tags ('")
    assert text.endswith("') are not read; delete it")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<<: {a: 1}", "merge keys (<<) are not read; write the keys out"),
        ("1: a", "the key 1 is not text; put it in quotes"),
        ("true: a", "the key true is not text; put it in quotes"),
        ("~: a", "the key null is not text; put it in quotes"),
        ("? [a]\n: b", "a key that is not plain text; allowed: text before a colon"),
        ("!x a: b", "a key that is not plain text; allowed: text before a colon"),
        ('"\\ud800": a', "half a character in '\\ud800'"),
    ],
)
def test_a_key_must_be_text(text: str, words: str) -> None:
    document = read_yaml(text)
    assert [fault.words for fault in document.faults] == [words]
    assert document.data == {}


def test_words_of_yaml_1_1_are_keys_like_any_other() -> None:
    assert read_yaml("on: 1\nno: 2\n").data == {"on": 1, "no": 2}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a:\n\tb: 1", 2, "a tab; indent with spaces"),
        ("a: 1\n  b: 2", 2, "a colon where no key can stand; indent it, or quote text"),
        ("a: b: c", 1, "a colon where no key can stand; indent it, or quote text"),
        ("a:\n  b: 1\n c: 2", 3, "the indentation fits no line above"),
        ("a: 'x' y", 1, "text after a value that has ended; quote all of it"),
        ("a: 1\nbc\nd: 2", 2, "a key without a colon and a space after it"),
        ("a:\n  b: 1\n  c\n", 3, "a key without a colon and a space after it"),
        ("a: [1,\n 2\n", 1, "a bracket is not closed"),
        ("a: [1\nb: 2", 2, "a comma or a closing bracket is missing"),
        ("a: 'x\n", 1, "a quote is not closed"),
        ("a: *b", 1, "an alias (*) of an anchor (&) that does not stand above it"),
        ("a: &x 1\nb: &x 2", 2, "an anchor (&) whose name is taken; choose another"),
        ("a: @x", 1, "text that begins with a special character; put it in quotes"),
        ("a: ]", 1, "a value is missing before this character"),
        ("a: !x!y 1", 1, "tags (!) are not read"),
        ("%YAML 2.0\n---\na: 1", 1, "only YAML 1 is read; delete the line %YAML"),
        ("a: 1\n---\nb: 2", 2, "a second document (---); a sweep file holds one"),
        ('a: "\\UFFFFFFFF"', 1, "an escape or a %YAML line holds too large a number"),
        (f"%YAML {'9' * 5000}.1\n---\n", 1, "an escape or a %YAML line holds too large a number"),
    ],
)
def test_a_syntax_error_has_a_line_and_plain_words(text: str, line: int, words: str) -> None:
    (fault,) = read_yaml(text).faults
    assert fault.line == line
    assert fault.words == f"not valid YAML: {words}"


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n...\n# x"])
def test_nothing_is_refused_as_empty(text: str) -> None:
    document = read_yaml(text)
    assert document.data in (REFUSED, None)
    if document.data is REFUSED:
        (fault,) = document.faults
        assert fault.words == "the file is empty; copy a sweep file from sweeps/"


def test_a_control_character_is_refused_with_its_line() -> None:
    (fault,) = read_yaml("a: 1\nb: \x07\n").faults
    assert (fault.line, fault.words) == (2, "the character U+0007 cannot stand in YAML")


def test_depth_is_bounded() -> None:
    (fault,) = read_yaml("[" * 1000 + "]" * 1000).faults
    assert fault.words == "not valid YAML: nested more than 32 levels deep"


def test_depth_through_aliases_is_bounded() -> None:
    chain = "l0: &l0 [1]\n" + "".join(f"l{i}: &l{i} [*l{i - 1}]\n" for i in range(1, 60))
    (fault,) = read_yaml(chain).faults
    assert fault.words == "not valid YAML: nested more than 32 levels deep"


def test_the_number_of_values_is_bounded() -> None:
    (fault,) = read_yaml("[" + "1," * MOST_NODES + "]").faults
    assert fault.words == "not valid YAML: more than 20000 values, aliases written out"


def test_windows_line_ends_are_line_ends() -> None:
    document = read_yaml("a: 1\r\nb:\r\n  - 2\r\n")
    assert document.data == {"a": 1, "b": [2]}
    assert document.lines["b", 0] == 3
