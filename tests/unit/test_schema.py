from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from autotune.errors import UsageError
from autotune.spec import read_spec
from autotune.spec.json_schema import describe, json_schema
from autotune.spec.schema import SCHEMA_FILE, schema_text, write_schema
from autotune.spec.yaml_reader import read_yaml

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))
SOUND = """\
version: 1
name: mine
workload:
  gpt: {layers: 2, width: 64, heads: 4, vocab: 128, sequence: 16}
  micro_batch: 4
  gradient_accumulation: 2
"""


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    Draft202012Validator.check_schema(json_schema())
    return Draft202012Validator(json_schema())


def test_the_shipped_schema_is_that_of_the_model() -> None:
    assert (ROOT / SCHEMA_FILE).read_text(encoding="utf-8") == schema_text(), (
        "run python -m autotune.spec.schema in the root of the repository"
    )


def test_sweeps_are_shipped() -> None:
    assert {file.stem for file in SWEEPS} >= {"quickstart", "gpt2-124m", "llama-1b-8gpu"}


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_a_shipped_sweep_can_be_read_and_is_named_as_its_file(file: Path) -> None:
    assert read_spec(file).name == file.stem


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_a_shipped_sweep_follows_the_schema(file: Path, validator: Draft202012Validator) -> None:
    found = read_yaml(file.read_text(encoding="utf-8")).data
    assert [error.message for error in validator.iter_errors(found)] == []


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_a_shipped_sweep_tells_editors_of_the_schema(file: Path) -> None:
    first, _, _ = file.read_text(encoding="utf-8").partition("\n")
    assert first == f"# yaml-language-server: $schema={SCHEMA_FILE.name}"


RIGHT = {
    "one value": "space: {backend: fsdp}",
    "a list": "space: {backend: [fsdp, deepspeed]}",
    "a whole float": "space: {bucket_bytes: [25e6]}",
    "a percentage": "margin: 1%",
    "a fraction": "margin: 0.02",
    "auto": "launch: {local: {ranks: auto}}",
    "a number of ranks": "launch: {local: {ranks: 2}}",
    "probes alone": "budget: {probes: 3}",
    "an empty space": "space: {}",
    "a limit of a gate": "gates: {relative_error: 0.02, activation_headroom: 0}",
    "no limits of gates": "gates: {}",
    "steps of numerics": "measure: {gate_steps: 8, trace_steps: 20}",
    "a learning rate": "target: {learning_rate: 3e-4}",
}
WRONG = {
    "an unknown knob": "space: {precison: bf16}",
    "an unknown section": "budgt: {}",
    "an unknown value": "space: {precision: [bf61]}",
    "an empty list": "space: {precision: []}",
    "a repeated value": "space: {precision: [bf16, bf16]}",
    "text for a switch": "space: {overlap_comm: yes}",
    "a stage too high": "space: {zero_stage: 4}",
    "half a byte": "space: {bucket_bytes: 0.5}",
    "a list in the baseline": "baseline: {precision: [bf16]}",
    "no limit": "budget: {}",
    "no time": "budget: {minutes: 0}",
    "a margin of one": "margin: 1",
    "a margin of everything": "margin: 100%",
    "other ranks": "launch: {local: {ranks: all}}",
    "no value": "space: {precision: }",
    "a gate without a number": "gates: {finite_forward: 1}",
    "a limit of nothing": "gates: {gain: 0}",
    "a limit of everything": "gates: {cosine: 0.999}",
    "a limit in quotes": "gates: {gain: '0.01'}",
    "a negative learning rate": "target: {learning_rate: -1}",
    "too few steps of a gate": "measure: {gate_steps: 7}",
    "too few steps of a trace": "measure: {trace_steps: 19}",
    "no steps": "measure: {timed_steps: 0}",
}


@pytest.mark.parametrize("section", RIGHT.values(), ids=RIGHT.keys())
def test_what_is_right_is_right_for_reader_and_schema(
    section: str, tmp_path: Path, validator: Draft202012Validator
) -> None:
    assert _is_read(SOUND + section, tmp_path)
    assert validator.is_valid(read_yaml(SOUND + section).data)


@pytest.mark.parametrize("section", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_wrong_for_reader_and_schema(
    section: str, tmp_path: Path, validator: Draft202012Validator
) -> None:
    assert not _is_read(SOUND + section, tmp_path)
    assert not validator.is_valid(read_yaml(SOUND + section).data)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("version: 1", "version: 2"),
        ("name: mine", "name: a/b"),
        ("gpt: {", "hf: {"),
        ("  micro_batch: 4\n", ""),
        ("  micro_batch: 4\n", "  micro_batch: 4\n  python: a:b\n"),
        ("gpt: {layers: 2, width: 64, heads: 4, vocab: 128, sequence: 16}", "python: train.py"),
    ],
)
def test_a_wrong_core_is_wrong_for_reader_and_schema(
    old: str, new: str, tmp_path: Path, validator: Draft202012Validator
) -> None:
    text = SOUND.replace(old, new)
    assert text != SOUND
    assert not _is_read(text, tmp_path)
    assert not validator.is_valid(read_yaml(text).data)


def _is_read(text: str, folder: Path) -> bool:
    file = folder / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    try:
        read_spec(file)
    except UsageError:
        return False
    return True


def _properties(schema: Any) -> Iterator[tuple[str, Any]]:
    for section in (schema, *schema["$defs"].values()):
        yield from section["properties"].items()


def test_an_editor_can_explain_every_key() -> None:
    definitions = json_schema()["$defs"]
    for name, key in _properties(json_schema()):
        target = definitions.get(key.get("$ref", "").removeprefix("#/$defs/"), key)
        assert target.get("description"), name


def test_every_key_has_words_for_what_it_allows() -> None:
    for name, key in _properties(json_schema()):
        assert describe(key), name


def test_the_schema_offers_no_null() -> None:
    assert "null" not in schema_text()


def test_the_command_writes_the_schema_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    command = [sys.executable, "-W", "error", "-m", "autotune.spec.schema"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"wrote {SCHEMA_FILE}\n")
    assert (tmp_path / SCHEMA_FILE).read_text(encoding="utf-8") == schema_text()


def test_the_schema_has_one_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="run this in the root of autotune's repository"):
        write_schema(tmp_path)
