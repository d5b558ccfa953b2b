"""Files as the lint reads them: every key has its place, and nothing is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.lint.document import Document, Unreadable, parse_document, read_document
from autotune.lint.kinds import Kind, Unknown, recognise
from autotune.lint.places import dotted, locate
from autotune.lint.versions import applies, named, within
from tests.lint_case import document

HJSON = """\
{
  // the batch
  "train_batch_size": 8, # in all
  fp16: {
    enabled: true
    "loss_scale": 0,   /* dynamic */
  },
  'note': '''
    two
    lines
    ''',
  "optimizer": {"type": AdamW in words
    params: {"betas": [0.9, 0.999,],},
  }
}
"""


def where(found: Document, *path: str | int) -> tuple[int, int]:
    place = found.place(tuple(path))
    return place.line, place.column


def test_keys_of_hjson_have_their_lines_and_columns() -> None:
    found = document(HJSON)
    assert found.format == "hjson"
    assert found.data["fp16"] == {"enabled": True, "loss_scale": 0}
    assert where(found, "train_batch_size") == (3, 3)
    assert where(found, "fp16", "enabled") == (5, 5)
    assert where(found, "fp16", "loss_scale") == (6, 5)
    assert where(found, "optimizer", "type") == (12, 17)
    assert where(found, "optimizer", "params", "betas", 1) == (13, 29)


def test_keys_of_yaml_have_their_lines_and_columns() -> None:
    found = document("# x\na: 1\nb:\n  c: [1, 2]\n  'd e': {f: no}\n")
    assert found.data == {"a": 1, "b": {"c": [1, 2], "d e": {"f": False}}}
    assert where(found, "a") == (2, 1)
    assert where(found, "b", "c", 1) == (4, 10)
    assert where(found, "b", "d e", "f") == (5, 11)


def test_a_key_that_stands_nowhere_is_placed_at_its_block() -> None:
    found = document("a: 1\nb:\n  c: 2\n")
    assert where(found, "b", "absent") == (2, 1)
    assert where(found, "absent") == (1, 1)


def test_the_end_of_a_place_is_after_the_key() -> None:
    found = document('{\n "abc": 1\n}')
    place = found.place(("abc",))
    assert (place.line, place.column, place.end_line, place.end_column) == (2, 2, 2, 7)


def test_keys_that_stand_twice_are_told_and_the_last_one_counts() -> None:
    for text in ('{"a": {"x": 1}, "b": 1, "a": {"x": 2}}', "a: {x: 1}\nb: 1\na: {x: 2}\n"):
        found = document(text)
        assert found.data["a"] == {"x": 2}
        assert [entry.path for entry in found.twice] == [("a",)]
        (entry,) = found.twice
        assert entry.key is not None
        assert locate(text, entry.key).line == 1
        assert found.entries["a",].whole.start > entry.whole.end


def test_anchors_and_merged_keys_are_read_as_yaml_reads_them() -> None:
    found = document("base: &b {x: 1}\nother:\n  <<: *b\n  y: 2\n")
    assert found.data["other"] == {"x": 1, "y": 2}
    assert where(found, "other", "y") == (4, 3)
    assert where(found, "other", "x") == (2, 1)


def test_dates_and_keys_that_are_no_text_are_no_obstacle() -> None:
    found = document("date: 2026-01-01\nlabels: {0: a, true: b}\n")
    assert found.data == {"date": "2026-01-01", "labels": {"0": "a", "true": "b"}}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no mapping"),
        ("- a\n- b\n", "no mapping"),
        ("a: [\n", "not YAML"),
        ("a: 1\n---\nb: 2\n", "not YAML"),
        ("a: &x [*x, *x]\n", "nested"),
    ],
)
def test_what_holds_no_mapping_is_unreadable_in_one_line(text: str, word: str) -> None:
    found = parse_document(text, is_yaml=True)
    assert isinstance(found, Unreadable)
    assert word in found.why
    assert "\n" not in found.why


def test_a_bomb_of_aliases_is_unreadable() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    found = parse_document("\n".join(lines), is_yaml=True)
    assert isinstance(found, Unreadable)


def test_a_file_that_is_absent_is_unreadable(tmp_path: Path) -> None:
    found = read_document(tmp_path / "x.json")
    assert isinstance(found, Unreadable)
    assert found.why == "cannot be read (No such file or directory)"


def test_json_in_a_file_of_any_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text('// x\n{"bf16": {}}')
    assert isinstance(read_document(path), Document)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"zero_optimization": {"stage": 2}}, "deepspeed"),
        ({"train_batch_size": 8}, "deepspeed"),
        ({"bf16": {"enabled": True}}, "deepspeed"),
        ({"communication_data_type": "bf16"}, "deepspeed"),
        ({"gradient_clipping": 1.0, "steps_per_print": 10}, "deepspeed"),
        ({"distributed_type": "NO"}, "accelerate"),
        ({"compute_environment": "LOCAL_MACHINE", "mixed_precision": "bf16"}, "accelerate"),
        ({"output_dir": "x"}, "huggingface"),
        ({"model_name_or_path": "x", "bf16": True, "deepspeed": "ds.json"}, "huggingface"),
        ({"learning_rate": 1.0, "gradient_accumulation_steps": 2}, "huggingface"),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}, "model": "x"}, "huggingface"),
        ({"reshard_after_forward": True}, "fsdp"),
        ({"fsdp_transformer_layer_cls_to_wrap": "Block", "xla": False}, "fsdp"),
    ],
)
def test_a_file_is_known_by_what_stands_in_it(config: dict[str, Any], kind: Kind) -> None:
    assert recognise(config) == kind


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"apiVersion": "v1", "kind": "Pod"}, "of no known kind"),
        ({"pipe_parallel_size": 1, "model_parallel_size": 2, "fp16": {}}, "gpt-neox"),
        ({"base_model": "x", "datasets": [], "bf16": "auto"}, "axolotl"),
        ({"zero_optimisation": {"stage": 2}}, "looks like zero_optimization"),
    ],
)
def test_another_file_is_of_no_kind(config: dict[str, Any], word: str) -> None:
    found = recognise(config)
    assert isinstance(found, Unknown)
    assert word in found.why


@pytest.mark.parametrize(
    ("number", "spec", "holds"),
    [
        ("0.19.8", ">=0.18.3,<=0.19.8", True),
        ("0.18.2", ">=0.18.3,<=0.19.8", False),
        ("0.19.10", "<=0.19.8", False),
        ("0.19", "<0.19.0", False),
        ("2.13.0+cpu", "==2.13.0", True),
        ("5.0.0rc1", ">=5", True),
    ],
)
def test_versions_are_compared_as_numbers(number: str, spec: str, holds: bool) -> None:
    assert within(number, spec) is holds


def test_a_rule_applies_where_the_version_is_not_known() -> None:
    assert applies({"deepspeed": "<0.19"}, {})
    assert not applies({"deepspeed": "<0.19"}, {"deepspeed": "0.19.8"})


def test_versions_are_named_by_package() -> None:
    assert named(["deepspeed=0.16.4", "torch==2.8"]) == {"deepspeed": "0.16.4", "torch": "2.8"}


@pytest.mark.parametrize("text", ["deepspeed", "deepspeed=new", "numpy=1.0"])
def test_a_version_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="deepspeed=0"):
        named([text])


def test_a_path_is_written_with_points() -> None:
    assert dotted(("optimizer", "params", "betas", 0)) == "optimizer.params.betas[0]"
    assert dotted(()) == ""
