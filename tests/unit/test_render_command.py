"""``autotune render`` and the options that it shares with ``autotune export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from autotune.cli import app
from autotune.errors import UsageError
from autotune.export import DIALECTS, Unmeasured, fitting
from autotune.setup import Setup
from autotune.spec import read_setup
from autotune.wiring import named_subject

runner = CliRunner()


def run(*words: str) -> Result:
    return runner.invoke(app, ["render", *words])


def refusal(*words: str) -> str:
    found = run(*words)
    assert isinstance(found.exception, UsageError), found.output
    return str(found.exception)


def setup_of(**knobs: Any) -> Setup:
    return named_subject(read_setup(None, knobs), None).setup


def test_a_single_text_goes_to_stdout_alone() -> None:
    found = run("--to", "deepspeed", "--precision", "bf16", "--grad-comm-dtype", "fp32")
    config = json.loads(found.stdout)
    assert config["bf16"]["enabled"]
    assert config["communication_data_type"] == "fp32"
    assert "note: precision: expressed" in found.stderr


def test_a_file_names_knobs_and_flags_go_before_it(tmp_path: Path) -> None:
    file = tmp_path / "setup.yaml"
    text = "backend: ddp\nprecision: fp16\nbucket_bytes: 50e6\nloss_scale: {window: 77}\n"
    file.write_text(text + "micro_batch: 3\ngradient_accumulation: 5\n")
    named = read_setup(file, {"micro_batch": 6, "precision": None})
    setup = named_subject(named, None).setup
    assert (setup.backend, setup.precision, setup.grad_comm_dtype) == ("ddp", "fp16", "fp16")
    assert (setup.bucket_bytes, setup.micro_batch, setup.gradient_accumulation) == (
        50_000_000,
        6,
        5,
    )
    assert setup.loss_scale is not None
    assert setup.loss_scale.window == 77


def test_what_is_not_named_is_what_a_baseline_takes() -> None:
    assert setup_of().key == "deepspeed.z1.fp32.wire-fp32.mb1x1.bucket100000000.overlap"
    assert setup_of(backend="fsdp", precision="bf16").key == "fsdp.z3.bf16.wire-bf16.mb1x1"


def test_files_say_that_nothing_was_measured(tmp_path: Path) -> None:
    found = run("--backend", "fsdp", "--to", "accelerate", "-o", str(tmp_path / "out"))
    assert found.exit_code == 0, found.output
    text = (tmp_path / "out/accelerate.yaml").read_text()
    assert text.startswith("# Rendered by autotune; nothing was measured.\n# Setup: fsdp.z3.fp32")
    assert yaml.safe_load(text)["distributed_type"] == "FSDP"
    assert found.stdout.split() == [str(tmp_path / "out/accelerate.yaml")]


def test_a_header_lists_how_well_each_knob_is_said(tmp_path: Path) -> None:
    words = ("--backend", "ddp", "--activation-checkpointing", "--to", "accelerate")
    run(*words, "-o", str(tmp_path))
    head = [line for line in (tmp_path / "accelerate.yaml").read_text().splitlines() if "#" in line]
    assert any(line.startswith("# expressed: precision, grad_comm_dtype") for line in head)
    assert any("# cannot be expressed: activation_checkpointing. " in line for line in head)
    assert any("# approximated: micro_batch. " in line for line in head)


def test_all_writes_every_fitting_dialect_into_a_folder_of_its_name(tmp_path: Path) -> None:
    found = run("--backend", "fsdp", "--to", "all", "-o", str(tmp_path))
    assert found.exit_code == 0, found.output
    assert {path.name for path in tmp_path.iterdir()} == set(fitting("fsdp"))
    assert all(any(path.iterdir()) for path in tmp_path.iterdir())


def test_json_holds_the_setup_the_notes_and_the_texts_that_were_not_written() -> None:
    found = run("--to", "deepspeed", "--precision", "bf16", "--json")
    about = json.loads(found.stdout)
    assert Setup.from_dict(about["setup"]).key == about["key"]
    dialect = about["dialects"]["deepspeed"]
    assert json.loads(dialect["texts"]["ds_config.json"])["bf16"]["enabled"]
    assert {note["knob"] for note in dialect["notes"]} >= {"precision", "zero_stage"}
    sidecar = json.loads(dialect["texts"]["ds_config.provenance.json"])
    assert sidecar["measured"] is False
    assert sidecar["notes"] == dialect["notes"]


def test_several_texts_need_a_folder() -> None:
    words = refusal("--backend", "fsdp", "--to", "launch")
    assert "launch.sh" in words
    assert "-o FOLDER" in words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--precision", "bf17"], "--precision: 'bf17' is not allowed"),
        (["--bucket-bytes", "25.5"], "--bucket-bytes: 25.5 is not allowed"),
        (["--backend", "fsdp", "--zero-stage", "1"], "fsdp-shards-gradients"),
        (["--grad-comm-dtype", "fp16"], "fp16-wire-needs-loss-scale"),
        (["--precision", "fp16", "--initial-power", "-3"], "--loss-scale-initial-power: -3"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(words: list[str], said: str) -> None:
    assert said in refusal("--to", "deepspeed", *words)


def test_faults_of_the_file_are_named_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "setup.yaml"
    file.write_text("precision: bf16\nprecison: bf16\nzero_stage: 9\n")
    words = refusal(str(file), "--to", "deepspeed")
    assert f"{file}:2: precison: is no knob; allowed: backend, precision" in words
    assert f"{file}:3: zero_stage: 9 is not allowed" in words
    assert "setup file" in refusal(str(tmp_path / "none.yaml"), "--to", "deepspeed")


def test_the_dialects_are_listed() -> None:
    for command in ("render", "export"):
        found = runner.invoke(app, [command, "--dialects"])
        assert [line.split()[0] for line in found.stdout.splitlines()] == list(DIALECTS)
        listed = json.loads(runner.invoke(app, [command, "--dialects", "--json"]).stdout)
        assert listed["ddp"]["backends"] == ["ddp"]


def test_without_a_dialect_the_way_to_list_them_is_named() -> None:
    assert "--dialects" in refusal()
    assert "--dialects" in str(runner.invoke(app, ["export"]).exception)


def test_a_rendered_setup_has_its_key_in_its_provenance() -> None:
    subject = named_subject({"precision": "bf16"}, None)
    assert subject.provenance == Unmeasured(subject.setup.key)
