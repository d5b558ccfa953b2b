"""``--verify``: the installed consumers read what was exported."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from autotune.cli import app
from autotune.consult import Question, consult
from autotune.render import shipped_templates

runner = CliRunner()
TEMPLATE = Path("deepspeed/config.json.j2")


def render(*words: str) -> Result:
    return runner.invoke(app, ["render", "--precision", "bf16", *words])


def own_template(folder: Path, old: str, new: str) -> Path:
    """A user's folder with DeepSpeed's template, changed."""
    text = (shipped_templates() / TEMPLATE).read_text()
    assert old in text
    (folder / TEMPLATE).parent.mkdir()
    (folder / TEMPLATE).write_text(text.replace(old, new))
    return folder


def test_what_the_consumers_read_is_what_the_setup_says(tmp_path: Path) -> None:
    found = render("--to", "deepspeed", "-o", str(tmp_path / "out"), "--verify", "--json")
    assert found.exit_code == 0, found.output
    verified = json.loads(found.stdout)["dialects"]["deepspeed"]["verified"]
    assert not verified["failed"]
    assert set(verified["answer"]["versions"]) == {"torch", "deepspeed"}
    assert verified["answer"]["effective"]["grad_comm_dtype"] == "bf16"
    assert (tmp_path / "out/ds_config.json").exists()
    assert "it is what the setup says" in found.stderr


def test_a_template_that_loses_a_knob_is_told_and_fails(tmp_path: Path) -> None:
    line = '"communication_data_type": {{ grad_comm_dtype | tojson }},\n'
    templates = own_template(tmp_path, line, "")
    words = ("--grad-comm-dtype", "fp32", "--templates", str(templates), "--verify")
    found = render(*words, "--to", "deepspeed")
    assert found.exit_code == 1
    assert "DIFFERS: grad_comm_dtype should be 'fp32' and is 'bf16' for torch" in found.stderr


def test_files_that_their_consumer_refuses_fail_with_its_words(tmp_path: Path) -> None:
    templates = own_template(tmp_path, '"stage": {{ zero_stage | tojson }}', '"stage": "seven"')
    found = render("--templates", str(templates), "--verify", "--to", "deepspeed")
    assert found.exit_code == 1
    assert "REFUSED by torch" in found.stderr
    assert "seven" in found.stderr


def test_what_one_question_leaves_behind_does_not_reach_the_next(tmp_path: Path) -> None:
    words = ("--backend", "ddp", "--precision", "fp32", "--bucket-bytes", "50e6")
    first = runner.invoke(app, ["render", *words, "--to", "ddp", "-o", str(tmp_path / "ddp")])
    plain = runner.invoke(
        app, ["render", "--backend", "fsdp", "--to", "accelerate", "-o", str(tmp_path / "plain")]
    )
    assert (first.exit_code, plain.exit_code) == (0, 0)
    asked = [
        Question("ddp", tmp_path / "ddp"),
        Question("accelerate", tmp_path / "plain"),
        Question("ddp", tmp_path / "ddp"),
    ]
    one, two, three = consult(asked)
    assert one == three
    assert one.effective["bucket_bytes"] == 50_000_000
    assert two.effective["grad_comm_dtype"] == "fp32"
    assert "fsdp_setup.py" not in {path.name for path in (tmp_path / "plain").iterdir()}
