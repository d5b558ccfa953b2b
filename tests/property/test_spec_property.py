from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from autotune.errors import UsageError
from autotune.setup import BACKENDS, PRECISIONS, WIRE_DTYPES
from autotune.spec import Spec, read_spec
from autotune.spec.json_schema import json_schema
from autotune.spec.yaml_reader import read_plain, read_yaml

VALID: dict[str, Any] = {
    "version": 1,
    "name": "mine",
    "workload": {
        "gpt": {
            "layers": 2,
            "width": 64,
            "heads": 4,
            "kv_heads": 2,
            "vocab": 128,
            "sequence": 16,
            "mlp_ratio": 2.5,
            "style": "llama",
        },
        "micro_batch": 4,
        "gradient_accumulation": 2,
        "seed": 3,
    },
    "launch": {"local": {"ranks": "auto", "deadline_seconds": 60, "probes_per_launch": 9}},
    "space": {
        "backend": ["deepspeed", "fsdp"],
        "precision": ["fp32", "bf16"],
        "zero_stage": [1, 2],
        "overlap_comm": True,
        "loss_scale": {"initial_power": [12, 16], "window": 500},
    },
    "baseline": {"precision": "fp32", "loss_scale": {"minimum": 1}},
    "target": {"world_size": 64, "steps": 1000},
    "budget": {"minutes": 5, "probes": 60},
    "margin": "1%",
    "measure": {"warm_up_steps": 1, "warm_up_cap": 2},
}
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 1, 2**60, 0.5, 1e300, "", "auto", "bf16", "1%", "no", [], {}, [[]], ["a"]]
)
SCRAPS = st.lists(
    st.sampled_from(
        ["version: 1\n", "name: x\n", "workload:\n", "  gpt: ", "space: ", "args: ", "*a", "&a ",
         "!!", "!", "<<: ", "- ", ": ", "? ", "{", "}", "[", "]", ",", "|", ">-", '"', "'", "\\U",
         "\\x", "%YAML ", "%", "---\n", "...\n", "\n", "  ", "\t", "1e5", "017", "~", "#", "\x85",
         "\u2028", "\ufeff", "9" * 30]
    ),
    max_size=30,
).map("".join)  # fmt: skip


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "mine.yaml"


def spec_or_error(file: Path, content: bytes) -> Spec | str:
    """What reading yields; any exception but UsageError fails the test."""
    file.write_bytes(content)
    try:
        return read_spec(file)
    except UsageError as error:
        return str(error)


def assert_plain(result: Spec | str) -> None:
    """An error names the file on every line and none of our tools."""
    if isinstance(result, str):
        assert result
        for line in result.split("\n"):
            assert "mine.yaml:" in line
            assert line.isprintable()
            assert "pydantic" not in line
            assert "Input should" not in line


@given(content=st.binary(max_size=200))
@example(content=b"\xff\xfe")
@example(content=b"")
def test_bytes_of_any_kind_are_read_or_refused(file: Path, content: bytes) -> None:
    assert_plain(spec_or_error(file, content))


@given(content=st.text(st.characters(codec="utf-8"), max_size=200) | SCRAPS)
def test_text_of_any_kind_is_read_or_refused(file: Path, content: str) -> None:
    assert_plain(spec_or_error(file, content.encode()))


@given(text=SCRAPS, at=st.integers(0, 2000), length=st.integers(0, 40))
def test_a_sound_file_with_a_scrap_in_it_is_read_or_refused(
    file: Path, text: str, at: int, length: int
) -> None:
    sound = yaml.safe_dump(VALID, sort_keys=False)
    at %= len(sound)
    assert_plain(spec_or_error(file, (sound[:at] + text + sound[at + length :]).encode()))


def _containers(value: Any) -> Iterator[dict[str, Any] | list[Any]]:
    if isinstance(value, dict | list):
        if value:
            yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A sound file with a few values, keys or list items changed, renamed or gone."""
    data = copy.deepcopy(VALID)
    for _ in range(draw(st.integers(1, 4))):
        containers: list[Any] = list(_containers(data))
        container = draw(st.sampled_from(containers))
        keys = range(len(container)) if isinstance(container, list) else list(container)
        key = draw(st.sampled_from(list(keys)))
        change = draw(st.sampled_from(["replace", "remove", "rename"]))
        if change == "replace":
            container[key] = copy.deepcopy(draw(ODD))
        elif change == "remove" or isinstance(container, list):
            del container[key]
        else:
            container[draw(st.text(max_size=5)) + key[1:]] = container.pop(key)
    return data


@given(data=mutated())
def test_a_sound_file_with_values_changed_is_read_or_refused(
    file: Path, data: dict[str, Any]
) -> None:
    assert_plain(spec_or_error(file, yaml.safe_dump(data, allow_unicode=True).encode()))


@given(data=mutated())
def test_what_the_schema_refuses_the_reader_refuses_too(file: Path, data: dict[str, Any]) -> None:
    text = yaml.safe_dump(data)
    document = read_yaml(text)
    if document.faults or Draft202012Validator(json_schema()).is_valid(document.data):
        return
    assert isinstance(spec_or_error(file, text.encode()), str)


def _axis(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values | st.lists(values, min_size=1, max_size=4, unique=True)


COUNTS = st.integers(1, 10**6)
SCALE = {
    "initial_power": st.integers(0, 32),
    "window": COUNTS,
    "hysteresis": COUNTS,
    "minimum": COUNTS,
}
KNOBS = {
    "backend": st.sampled_from(BACKENDS),
    "precision": st.sampled_from(PRECISIONS),
    "grad_comm_dtype": st.sampled_from(WIRE_DTYPES),
    "zero_stage": st.integers(0, 3),
    "bucket_bytes": st.integers(1, 2**40),
    "overlap_comm": st.booleans(),
    "activation_checkpointing": st.booleans(),
    "micro_batch": COUNTS,
}
SPACES = st.fixed_dictionaries(
    {},
    optional={
        **{name: _axis(values) for name, values in KNOBS.items()},
        "loss_scale": st.fixed_dictionaries(
            {}, optional={name: _axis(values) for name, values in SCALE.items()}
        ),
    },
)
BASELINES = st.fixed_dictionaries(
    {}, optional={**KNOBS, "loss_scale": st.fixed_dictionaries({}, optional=SCALE)}
)


def _flat(section: dict[str, Any]) -> dict[str, Any]:
    scale = section.get("loss_scale", {})
    plain = {name: value for name, value in section.items() if name != "loss_scale"}
    return {**plain, **{f"loss_scale.{name}": value for name, value in scale.items()}}


@given(space=SPACES, baseline=BASELINES, style=st.sampled_from([None, True, False]))
@settings(max_examples=200)
def test_a_sound_space_and_baseline_come_back_as_written(
    file: Path, space: dict[str, Any], baseline: dict[str, Any], style: bool | None
) -> None:
    text = yaml.safe_dump(
        {**VALID, "space": space, "baseline": baseline}, default_flow_style=style, sort_keys=False
    )
    spec = spec_or_error(file, text.encode())
    assert isinstance(spec, Spec), spec
    assert spec.axes == {
        name: tuple(value) if isinstance(value, list) else (value,)
        for name, value in _flat(space).items()
    }
    assert spec.baseline == _flat(baseline)


def is_text_to_both(text: str) -> bool:
    """PyYAML writes 0E0 without quotes, which is text to it and a number to a sweep file."""
    try:
        return read_plain(text) == text
    except ValueError:
        return False


@given(
    args=st.dictionaries(
        st.text(st.characters(codec="ascii", categories=["L"]), min_size=1).filter(
            lambda name: name not in ("rank", "seed") and read_plain(name) == name
        ),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**63) + 1, 2**63 - 1)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])).filter(
                is_text_to_both
            ),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=5,
        ),
        max_size=3,
    )
)
def test_arguments_of_a_factory_come_back_as_written(file: Path, args: dict[str, Any]) -> None:
    workload = {"python": "a.b:c", "args": args, "micro_batch": 1, "gradient_accumulation": 1}
    text = yaml.safe_dump({**VALID, "workload": workload}, allow_unicode=True)
    spec = spec_or_error(file, text.encode())
    assert isinstance(spec, Spec), spec
    assert spec.workload.model.args == args  # type: ignore[union-attr]


@given(number=st.integers(-(2**63) + 1, 2**63 - 1))
def test_a_whole_number_is_read_as_itself(number: int) -> None:
    assert read_yaml(f"a: {number}").data == {"a": number}


@given(number=st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_as_python_writes_it_is_read_as_itself(number: float) -> None:
    assert read_yaml(f"a: {number!r}").data == {"a": number}
