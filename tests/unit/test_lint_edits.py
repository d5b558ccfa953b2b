"""Edits change the text of one key, and leave everything else as it was written."""

from __future__ import annotations

import pytest

from autotune.lint.edits import Edit, apply_edits, insert, put, remove, rename
from tests.lint_case import document

JSON = """\
{
  "a": 1,
  "b": {
    "c": "x", // why
    "d": [1, 2]
  },
  "e": null
}
"""
YAML = """\
# head
a: 1   # one
b:
  c: 'x'
  d:
    - 1
    - 2

# tail
e: [1, 2]
"""


def edited(text: str, *edits: Edit) -> str:
    return apply_edits(document(text), edits).text


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (remove("a"), '  "a": 1,\n', ""),
        (remove("b", "c"), '    "c": "x", // why\n', "    // why\n"),
        (remove("b", "d"), '    "d": [1, 2]\n', ""),
        (remove("e"), '},\n  "e": null\n', "}\n"),
        (rename(("b", "c"), "new"), '"c": "x"', '"new": "x"'),
        (put(("b", "d"), False), "[1, 2]", "false"),
        (insert(("b", "z"), 1), '    "c"', '    "z": 1,\n    "c"'),
        (insert(("z",), "bf16"), '  "a"', '  "z": "bf16",\n  "a"'),
    ],
)
def test_an_edit_of_json_changes_these_characters_only(edit: Edit, before: str, after: str) -> None:
    assert JSON.count(before) == 1
    assert edited(JSON, edit) == JSON.replace(before, after)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (remove("a"), "a: 1   # one\n", "# one\n"),
        (remove("b", "c"), "  c: 'x'\n", ""),
        (remove("b", "d"), "  d:\n    - 1\n    - 2\n", ""),
        (remove("e"), "e: [1, 2]\n", ""),
        (rename(("b", "c"), "new"), "  c:", "  new:"),
        (put(("b", "c"), "no"), "'x'", "'no'"),
        (put(("a",), 1e-5), "1   #", "1.0e-05   #"),
        (put(("a",), {"stage": 1}), "1   #", "{stage: 1}   #"),
        (insert(("b", "z"), True), "  c:", "  z: true\n  c:"),
        (insert(("z",), "on"), "a: 1", "z: 'on'\na: 1"),
    ],
)
def test_an_edit_of_yaml_changes_these_characters_only(edit: Edit, before: str, after: str) -> None:
    assert YAML.count(before) == 1
    assert edited(YAML, edit) == YAML.replace(before, after)


@pytest.mark.parametrize(
    ("text", "edit", "after"),
    [
        ("a:\n  b: 1\nc: 2\n", remove("a", "b"), "a: {}\nc: 2\n"),
        ("a: {b: 1, c: 2}\n", remove("a", "b"), "a: {c: 2}\n"),
        ("a: {b: 1, c: 2}\n", remove("a", "c"), "a: {b: 1}\n"),
        ("a: {b: 1}\n", insert(("a", "z"), 2), "a: {z: 2, b: 1}\n"),
        ("{a: 1}\n", insert(("z",), 2), "{z: 2, a: 1}\n"),
        ('{"a": 1, "a": 2}', Edit("first", ("a",)), '{"a": 2}'),
        ("a: 1\nb: 2\na: 3\n", Edit("first", ("a",)), "b: 2\na: 3\n"),
        ("a: &x 1\nb: *x\n", remove("b"), "a: &x 1\n"),
    ],
)
def test_edits_keep_to_the_style_of_the_file(text: str, edit: Edit, after: str) -> None:
    assert edited(text, edit) == after


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ('{"a": 1}', remove("b")),
        ('{"a": 1, "b": 2}', rename(("a",), "b")),
        ('{"a": 1}', insert(("a",), 2)),
        ('{"a": 1}', insert(("x", "y"), 2)),
        ("a: &x 1\nb: *x\n", remove("a")),
        ("base: &b {x: 1}\nother: {<<: *b}\n", put(("other", "x"), 2)),
    ],
)
def test_an_edit_that_would_say_something_else_is_left_out(text: str, edit: Edit) -> None:
    assert edited(text, edit) == text


def test_edits_follow_one_another() -> None:
    after = edited("a: 1\nb: {c: 2}\n", rename(("a",), "d"), put(("d",), 2), remove("b", "c"))
    assert after == "d: 2\nb: {}\n"
