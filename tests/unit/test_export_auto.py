"""A user's own DeepSpeed configuration that leaves its batch to their Trainer."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autotune.export import Exported, Subject, export, subject_of
from tests.build import make_probe, make_setup
from tests.unit.test_export import PROVENANCE

OWN = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": 1e-8}},
    "zero_optimization": {"stage": 1},
}


def subject() -> Subject:
    setup = make_setup(precision="bf16", micro_batch=4, gradient_accumulation=3)
    return subject_of(replace(make_probe(0, setup), rendered=json.dumps(OWN)), PROVENANCE)


def statuses(found: Exported) -> dict[str, str]:
    return {note.knob: note.status for note in found.notes}


@pytest.mark.parametrize("to", ["deepspeed", "accelerate", "launch", "slurm"])
def test_the_file_stays_as_it_ran_and_what_it_leaves_open_is_said(to: str) -> None:
    found = export(subject(), to)
    assert json.loads(found.files["ds_config.json"]) == OWN
    assert statuses(found)["micro_batch"] == "approximated"
    assert statuses(found)["gradient_accumulation"] == "approximated"
    texts = [note.text for note in found.notes if note.knob == "gradient_accumulation"]
    assert texts == [
        'gradient_accumulation_steps is "auto": your script says 3 to whoever fills it in'
    ]
    assert statuses(found)["zero_stage"] == "expressed"


def test_lightning_fills_nothing_in_so_its_file_has_no_auto() -> None:
    config = json.loads(export(subject(), "lightning").files["ds_config.json"])
    assert "auto" not in json.dumps(config)
    assert config["train_micro_batch_size_per_gpu"] == 4
    assert config["gradient_accumulation_steps"] == 3
    assert config["optimizer"] == {"type": "AdamW", "params": {"eps": 1e-8}}
    assert config["zero_optimization"] == {"stage": 1}


def test_a_file_without_auto_goes_to_lightning_byte_for_byte() -> None:
    text = '{"zero_optimization":   {"stage": 1}}\n'
    plain = replace(subject(), config=text)
    assert export(plain, "lightning").files["ds_config.json"] == text
