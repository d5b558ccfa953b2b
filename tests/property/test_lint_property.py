"""Places and edits of any JSON, Hjson and YAML are those of the parsers that read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hjson
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune.configs.deepspeed_keys import TOP_LEVEL, VALIDATED
from autotune.configs.huggingface_keys import ARGUMENTS
from autotune.lint.checks import findings_in
from autotune.lint.document import Document, parse_document
from autotune.lint.edits import apply_edits, insert, put, remove, rename
from autotune.lint.effects import effects_of
from autotune.lint.kinds import KINDS
from autotune.lint.places import get, paths_of

KEYS = st.text("abc_ -:.{}\"'#/é", min_size=1, max_size=6)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**12),
    st.text(max_size=8),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=12,
)
CONFIGS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)
STYLES = ("json", "wide json", "hjson", "yaml", "flow yaml")


def written(config: dict[str, Any], style: str) -> str:
    if style == "json":
        return json.dumps(config, indent=2)
    if style == "wide json":
        return json.dumps(config)
    if style == "hjson":
        text: str = hjson.dumps(config)
        return text
    return yaml.safe_dump(config, default_flow_style=style == "flow yaml", sort_keys=False)


def read(text: str, style: str) -> Document:
    found = parse_document(text, is_yaml="yaml" in style)
    assert isinstance(found, Document), (found, text)
    return found


@given(CONFIGS, st.sampled_from(STYLES))
def test_every_key_has_the_place_where_it_is_written(config: dict[str, Any], style: str) -> None:
    found = read(written(config, style), style)
    assert set(found.entries) == set(paths_of(found.data))
    assert found.twice == ()
    for path, entry in found.entries.items():
        text = found.written(entry.value)
        value = get(found.data, path)
        if isinstance(value, int) and not isinstance(value, bool) and style != "hjson":
            assert int(float(text)) == value
        if entry.key is not None and style in ("json", "wide json"):
            assert json.loads(found.written(entry.key)) == path[-1]
            assert json.loads(text) == value


@given(CONFIGS, st.sampled_from(STYLES), st.data(), LEAVES)
def test_an_edit_changes_the_data_as_it_says_or_nothing(
    config: dict[str, Any], style: str, data: st.DataObject, value: Any
) -> None:
    before = read(written(config, style), style)
    keys = [path for path, entry in before.entries.items() if entry.key is not None]
    path = data.draw(st.sampled_from(keys))
    edit = data.draw(
        st.sampled_from(
            [
                remove(*path),
                rename(path, "new"),
                put(path, value),
                insert((*path[:-1], "n"), value),
            ]
        )
    )
    after = apply_edits(before, [edit])
    if after is before:
        return
    untouched = {
        other: get(before.data, other)
        for other in before.entries
        if other[: len(path)] != path and path[: len(other)] != other
    }
    assert {other: get(after.data, other) for other in untouched} == untouched
    assert after.data != before.data or edit.value == get(before.data, path)


@given(CONFIGS, st.data())
def test_plain_json_can_always_be_edited(config: dict[str, Any], data: st.DataObject) -> None:
    before = read(json.dumps(config, indent=2), "json")
    keys = [path for path, entry in before.entries.items() if entry.key is not None]
    path = data.draw(st.sampled_from(keys))
    if len(before.data) > 1 or len(path) > 1:
        after = apply_edits(before, [remove(*path)])
        assert path not in after.entries


NAMES = sorted({*TOP_LEVEL, *ARGUMENTS, "distributed_type", "fsdp_config", "mixed_precision"})
INNER = sorted({key for keys in VALIDATED.values() for key in keys})
ODD = st.one_of(
    LEAVES,
    st.sampled_from(["auto", "fp16", "no", "FSDP", "DEEPSPEED", "1e-5", "HYBRID_SHARD"]),
    st.dictionaries(st.sampled_from(INNER), LEAVES, max_size=4),
    st.lists(LEAVES, max_size=2),
)


@given(st.dictionaries(st.sampled_from(NAMES), ODD, min_size=1, max_size=5), st.sampled_from(KINDS))
def test_no_file_is_too_strange_to_be_linted(config: dict[str, Any], kind: Any) -> None:
    found = read(json.dumps(config), "json")
    for item in findings_in(found, kind, {}):
        assert item.text
        assert found.place(item.key).line == 1
    for effect in effects_of(found, kind, Path(), {}):
        json.dumps(effect.value)
        assert effect.text
