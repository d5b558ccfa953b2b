"""A workload that is a model of transformers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.probe.parse import parse_model
from autotune.spec import read_spec
from autotune.workload import Hf

FILE = """\
version: 1
name: mine
workload:
  micro_batch: 4
  gradient_accumulation: 2
  hf: models/llama
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models" / "llama").mkdir(parents=True)
    (tmp_path / "models" / "llama" / "config.json").write_text("{}")
    for name in ("tokens.npy", "tokens.bin", "tokens.parquet"):
        (tmp_path / name).touch()
    return tmp_path


def model_of(folder: Path, more: str = "", file: str = FILE) -> Hf:
    (folder / "mine.yaml").write_text(file + more)
    model = read_spec(folder / "mine.yaml").workload.model
    assert isinstance(model, Hf)
    return model


def error_of(folder: Path, more: str, file: str = FILE) -> str:
    with pytest.raises(UsageError) as caught:
        model_of(folder, more, file)
    return str(caught.value).replace(f"{folder / 'mine.yaml'}:", "")


def test_a_folder_alone_is_enough(folder: Path) -> None:
    assert model_of(folder) == Hf(path=str(folder / "models" / "llama"))


def test_a_config_file_is_as_good_as_its_folder(folder: Path) -> None:
    file = FILE.replace("llama", "llama/config.json")
    assert model_of(folder, file=file).path == str(folder / "models" / "llama" / "config.json")


def test_every_key_reaches_the_workers_as_it_was_written(folder: Path) -> None:
    model = model_of(
        folder,
        "  task: causal-lm\n  sequence: 128\n  data: tokens.bin\n  data_dtype: uint32\n"
        "  layers: [LlamaDecoderLayer, LlamaMLP]\n",
    )
    assert model == Hf(
        path=str(folder / "models" / "llama"),
        task="causal-lm",
        sequence=128,
        data=str(folder / "tokens.bin"),
        data_dtype="uint32",
        layers=("LlamaDecoderLayer", "LlamaMLP"),
    )
    assert parse_model(json.loads(json.dumps(asdict(model)))) == model


def test_one_layer_needs_no_list(folder: Path) -> None:
    assert model_of(folder, "  layers: LlamaMLP\n").layers == ("LlamaMLP",)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gpt2", "give a local folder: hf download gpt2 --local-dir gpt2"),
        ("~/models/x", "'~/models/x' is not on this machine, and nothing is downloaded; give a lo"),
        ("models", "'models' holds no config.json; give the model's folder"),
        ("tokens.bin", "'tokens.bin' is no config.json"),
        ('"\\0"', "is not on this machine"),
    ],
)
def test_a_model_that_is_not_there_is_refused(folder: Path, path: str, words: str) -> None:
    error = error_of(folder, "", FILE.replace("models/llama", path))
    assert error.startswith("6: workload.hf: ")
    assert words in error


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "  task: chat\n",
            "7: workload.task: 'chat' is not allowed; allowed: causal-lm, masked-lm, seq2seq-lm, "
            "image-classification",
        ),
        ("  data: tokens.txt\n", "7: workload.data: 'tokens.txt' is not allowed; allowed: a file"),
        ("  data: nowhere.npy\n", "7: workload.data: 'nowhere.npy' is not a file; allowed: a pat"),
        ("  data_dtype: uint16\n", "7: workload.data_dtype: data_dtype goes with data; add data:"),
        (
            "  data: tokens.npy\n  data_dtype: uint16\n",
            "8: workload.data_dtype: data_dtype is for .bin files and data is 'tokens.npy'; delete",
        ),
        (
            "  data: tokens.bin\n  data_column: ids\n",
            "8: workload.data_column: data_column is for .parquet files and data is 'tokens.bin'",
        ),
        (
            "  data: tokens.bin\n  data_dtype: float32\n",
            "8: workload.data_dtype: 'float32' is not allowed; allowed: uint8, uint16, uint32, ",
        ),
        (
            "  task: image-classification\n  sequence: 8\n",
            "8: workload.sequence: sequence is for text; delete it, because images are random",
        ),
        (
            "  task: image-classification\n  data: tokens.npy\n",
            "8: workload.data: data is for text; delete it, because images are random",
        ),
        ("  layers: [a.b]\n", "7: workload.layers[0]: 'a.b' is not allowed; allowed: the name of"),
        (
            "  args: {depth: 2}\n",
            "7: workload.args: args go to a python factory; delete them or us",
        ),
    ],
)
def test_keys_that_do_not_fit_each_other_are_refused_at_their_line(
    folder: Path, more: str, expected: str
) -> None:
    error = error_of(folder, more)
    assert error.startswith(expected)
    assert "\n" not in error


@pytest.mark.parametrize(
    "key",
    ["task: causal-lm", "sequence: 8", "data: tokens.npy", "data_dtype: uint16", "layers: Block"],
)
def test_keys_of_hf_are_refused_beside_another_model(folder: Path, key: str) -> None:
    name = key.partition(":")[0]
    error = error_of(folder, f"  {key}\n", FILE.replace("hf: models/llama", "python: a:b"))
    assert error == (
        f"7: workload.{name}: {name} goes with hf; delete it or use hf instead of python"
    )
