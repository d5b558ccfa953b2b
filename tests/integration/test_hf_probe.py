"""Models of transformers in real probes: two gloo ranks, configurations that the tests write."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.backends import backend_of
from autotune.launch import Launch
from autotune.numerics.gates import judge, refusal
from autotune.numerics.thresholds import Thresholds
from autotune.outcome import Measurement, Outcome
from autotune.readings import GradientReading
from autotune.render import render
from autotune.request import ReadingRequest
from autotune.setup import Setup
from autotune.workload import Hf, Workload
from tests.build import make_setup
from tests.conftest import request_for
from tests.unit.test_hf import BART, BERT, DINO, GPT2, LLAMA, T5, VIT

SAMPLES = 2 * 2 * 2  # of a step: ranks, micro-batch, accumulation
SEQUENCE = 16
Z1 = make_setup(precision="bf16", grad_comm_dtype="bf16")
Z3 = replace(Z1, zero_stage=3)
FSDP = make_setup(backend="fsdp", zero_stage=2, precision="bf16", grad_comm_dtype="bf16")
TIED = {"tie_word_embeddings": True}
ARCHITECTURES = {
    "llama": {**LLAMA, "architectures": ["LlamaForCausalLM"]},
    "gpt2": {**GPT2, **TIED, "architectures": ["GPT2LMHeadModel"]},
    "bert": {**BERT, **TIED, "architectures": ["BertForMaskedLM"]},
    "t5": {**T5, **TIED, "architectures": ["T5ForConditionalGeneration"]},
    "bart": {**BART, **TIED, "architectures": ["BartForConditionalGeneration"]},
    "vit": {**VIT, "architectures": ["ViTForImageClassification"]},
    "dinov2": {**DINO, "architectures": ["Dinov2ForImageClassification"]},
}


def workload_of(folder: Path, name: str, **given: Any) -> Workload:
    (folder / "config.json").write_text(json.dumps(ARCHITECTURES[name]), encoding="utf-8")
    text = {} if "image_size" in ARCHITECTURES[name] else {"sequence": SEQUENCE}
    model = Hf(path=str(folder), **{**text, **given})
    return Workload(model=model, micro_batch=2, gradient_accumulation=2)


def measured(launch: Launch, setup: Setup, workload: Workload) -> Measurement:
    outcome = launch.probe(request_for(setup, workload=workload), 60)
    assert outcome.kind == "ok", (outcome.reason, outcome.log)
    assert outcome.measurement is not None
    return outcome.measurement


@pytest.mark.parametrize(
    ("name", "setup", "tokens", "first_loss"),
    [
        ("gpt2", Z1, SAMPLES * (SEQUENCE - 1), math.log(64)),
        ("bert", FSDP, SAMPLES * 2, math.log(64)),  # 15 % of 16 tokens
        ("t5", Z3, SAMPLES * SEQUENCE, math.log(64)),
        ("vit", FSDP, SAMPLES, math.log(3)),
    ],
    ids=lambda value: getattr(value, "key", None),
)
def test_a_model_of_each_task_trains_with_the_wire_dtype_that_was_asked_for(
    warm: Launch, tmp_path: Path, name: str, setup: Setup, tokens: int, first_loss: float
) -> None:
    found = measured(warm, setup, workload_of(tmp_path, name))
    assert {item.dtype for item in found.wire} == {"bf16"}
    assert found.tokens_per_step == tokens
    assert found.losses[0] == pytest.approx(first_loss, rel=0.5)


def test_backends_train_tied_weights_alike(warm: Launch, tmp_path: Path) -> None:
    workload = workload_of(tmp_path, "bert", task="masked-lm")
    setups = [replace(setup, precision="fp32", grad_comm_dtype="fp32") for setup in (Z1, FSDP)]
    quiet = {**ARCHITECTURES["bert"], "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    (tmp_path / "config.json").write_text(json.dumps(quiet), encoding="utf-8")
    first, second = (measured(warm, setup, workload).losses for setup in setups)
    assert second == pytest.approx(first, rel=1e-5)


def test_tokens_of_a_file_are_what_is_learnt(warm: Launch, tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.full(SEQUENCE * 64, 5, np.uint16))
    data = str(tmp_path / "tokens.npy")
    found = measured(warm, Z1, workload_of(tmp_path, "llama", data=data))
    # The same token over and over is learnt at once, and random ones never below their entropy.
    assert found.losses[-1] < found.losses[0] < math.log(64) + 0.2


def gated(launch: Launch, setup: Setup, workload: Workload) -> GradientReading:
    backend = backend_of(setup)
    request = ReadingRequest(
        ask="gradient",
        setup=setup,
        rendered=render(backend.template, backend.variables(setup), None),
        workload=workload,
        steps=8,
        learning_rate=1e-3,
    )
    reading = launch.read(request, 60)
    assert not isinstance(reading, Outcome), (reading.reason, reading.log)
    assert isinstance(reading, GradientReading)
    return reading


def test_a_tied_model_with_dropout_passes_the_gates(warm: Launch, tmp_path: Path) -> None:
    reading = gated(warm, FSDP, workload_of(tmp_path, "gpt2"))
    failed = refusal(judge(FSDP, reading, Thresholds.default()))
    assert failed is None, failed
    assert reading.relative_error < 0.05


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_backend_stage_and_checkpointing_trains_every_kind_of_model(
    warm: Launch, tmp_path: Path, name: str
) -> None:
    workload = workload_of(tmp_path, name)
    setups = [
        replace(
            make_setup(backend=backend, zero_stage=stage, **dtypes), activation_checkpointing=again
        )
        for (backend, stage), dtypes, again in itertools.product(
            [("deepspeed", 1), ("deepspeed", 2), ("deepspeed", 3), ("fsdp", 2), ("fsdp", 3)],
            [{}, {"precision": "bf16", "grad_comm_dtype": "bf16"}],
            [False, True],
        )
    ]
    for setup in setups:
        assert measured(warm, setup, workload).tokens_per_step > 0
    for setup in (Z1, Z3, FSDP):
        reading = gated(warm, setup, workload)
        assert reading.gain == pytest.approx(1, abs=0.01), setup.key
        assert reading.relative_error < 0.1, setup.key


# The last, because it costs the launch.
def test_a_wrong_model_ends_in_its_error_and_not_in_a_traceback(
    warm: Launch, tmp_path: Path
) -> None:
    workload = workload_of(tmp_path, "llama", layers=("GPT2Block",))
    outcome = warm.probe(request_for(Z1, workload=workload), 60)
    assert outcome.kind == "crash"
    assert outcome.reason is not None
    assert "has no modules of the class GPT2Block" in outcome.reason
