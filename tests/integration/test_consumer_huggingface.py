"""TrainingArguments by transformers' parsers, and a Trainer's plugins, DDP and DeepSpeed's JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.consult import Answer, Question, consult
from autotune.export import export, write
from autotune.setup import BACKENDS
from autotune.wiring.exports import unmeasured
from tests.build import make_setup
from tests.proof import SAMPLED, faults, read

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

TO = "huggingface"
Edit = Callable[[dict[str, Any]], None]


def test_the_trainer_sees_what_the_notes_promise(tmp_path: Path) -> None:
    found = read(TO, [setup for backend in BACKENDS for setup in SAMPLED[backend]], tmp_path)
    assert list(faults(found)) == []
    for setup, _, answer in found:
        knobs = setup.to_dict()
        for knob in ("precision", "grad_comm_dtype", "zero_stage", "activation_checkpointing"):
            assert answer.effective[knob] == knobs[knob], setup.key
        for knob in ("micro_batch", "gradient_accumulation"):
            assert answer.effective[knob] == knobs[knob], setup.key


def written(folder: Path, **knobs: Any) -> Path:
    write(export(unmeasured(make_setup(**knobs), None), TO), folder)
    return folder


def edited(folder: Path, edit: Edit, **knobs: Any) -> Question:
    """All three forms after the same edit."""
    written(folder, **knobs)
    said = json.loads((folder / "training_args.json").read_text(encoding="utf-8"))
    edit(said)
    (folder / "training_args.json").write_text(json.dumps(said), encoding="utf-8")
    (folder / "training_args.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")
    words = [
        f"--{name}" if name == "fsdp" else f"--{name} '{json.dumps(value).strip(chr(34))}'"
        for name, value in said.items()
    ]
    (folder / "training_args.flags").write_text(f"training_args=({' '.join(words)})\n")
    return Question(TO, folder)


def one(question: Question) -> Answer:
    (answer,) = consult([question])
    assert not answer.missing
    return answer


def test_a_form_that_says_something_else_is_found(tmp_path: Path) -> None:
    questions: list[Question] = []
    for form, old, new in (
        ("json", '"max_grad_norm": 1.0', '"max_grad_norm": 2.0'),
        ("flags", "--tf32 false", "--no_tf32"),
        ("flags", "--gradient_accumulation_steps 2", "--gradient_accumulation_steps 4"),
    ):
        folder = written(tmp_path / str(len(questions)), precision="bf16")
        path = folder / f"training_args.{form}"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        questions.append(Question(TO, folder))
    said = [answer.refused or "" for answer in consult(questions)]
    assert "max_grad_norm is 1.0, but 2.0 in training_args.json" in said[0]
    assert "SystemExit" in said[1] or "not used" in said[1]
    assert "gradient_accumulation_steps is 2, but 4 in training_args.flags" in said[2]


def test_a_number_in_the_json_would_have_to_be_the_trainers_own(tmp_path: Path) -> None:
    folder = written(tmp_path, precision="bf16")
    path = folder / "ds_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "gradient_clipping": 0.3}), encoding="utf-8")
    assert "ds gradient_clipping=0.3 vs hf max_grad_norm=1.0" in (
        one(Question(TO, folder)).refused or ""
    )


def test_values_of_a_users_own_that_the_trainer_fills_in_are_filled_in(tmp_path: Path) -> None:
    folder = written(tmp_path, precision="bf16", zero_stage=3)
    path = folder / "ds_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["zero_optimization"]["reduce_bucket_size"] = "auto"
    config["bf16"]["enabled"] = "auto"
    path.write_text(json.dumps(config), encoding="utf-8")
    answer = one(Question(TO, folder))
    assert answer.refused is None
    assert answer.effective["precision"] == "bf16"


def test_without_the_modules_install_the_wire_is_another(tmp_path: Path) -> None:
    questions = []
    for number, knobs in enumerate(
        (
            {"backend": "fsdp", "precision": "bf16", "grad_comm_dtype": "fp32"},
            {"backend": "ddp", "precision": "bf16", "grad_comm_dtype": "bf16"},
        )
    ):
        folder = written(tmp_path / str(number), **knobs)
        (folder / f"{knobs['backend']}_setup.py").unlink()
        questions.append(Question(TO, folder))
    wires = [answer.effective["grad_comm_dtype"] for answer in consult(questions)]
    assert wires == ["bf16", "fp32"]


def reduce_dtype(said: dict[str, Any]) -> None:
    said["fsdp_config"] |= {"reduce_dtype": "fp32", "mixed_precision_policy": "fp32"}


def recompute_twice(said: dict[str, Any]) -> None:
    said["gradient_checkpointing"] = True


def misspell(said: dict[str, Any]) -> None:
    said["ddp_bucket_cap"] = 25


def test_why_the_keys_are_as_they_are(tmp_path: Path) -> None:
    sharded = {"backend": "fsdp", "precision": "bf16", "grad_comm_dtype": "bf16"}
    dropped, twice, unknown = consult(
        [
            edited(tmp_path / "0", reduce_dtype, **sharded),
            edited(tmp_path / "1", recompute_twice, **sharded, activation_checkpointing=True),
            edited(tmp_path / "2", misspell, backend="ddp"),
        ]
    )
    assert dropped.effective["grad_comm_dtype"] == "bf16", "transformers reads it now: say it there"
    assert "two ways" in (twice.refused or "")
    assert "Some keys are not used" in (unknown.refused or "")
