"""Rendered texts, compared whole with files that a person has read.

After a wanted change of a template: ``pytest tests/unit/test_render_golden.py --update-golden``,
then read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.backends import backend_of
from autotune.render import render
from autotune.setup import LossScale, Setup
from tests.build import make_setup

GOLDEN = Path(__file__).parent.parent / "golden"

SETUPS = {
    "deepspeed_fp32_stage0.json": make_setup(zero_stage=0, bucket_bytes=None),
    "deepspeed_tf32_stage3.json": make_setup(precision="tf32", zero_stage=3),
    "deepspeed_bf16_stage2.json": make_setup(
        precision="bf16", grad_comm_dtype="bf16", zero_stage=2, overlap_comm=True
    ),
    "deepspeed_fp16_stage1.json": make_setup(
        precision="fp16",
        grad_comm_dtype="fp16",
        loss_scale=LossScale(initial_power=12, window=500, hysteresis=4, minimum=8),
    ),
    "fsdp_tf32_reshard.py": make_setup(backend="fsdp", precision="tf32"),
    "fsdp_bf16_checkpointed.py": make_setup(
        backend="fsdp", precision="bf16", grad_comm_dtype="bf16", activation_checkpointing=True
    ),
    "fsdp_fp16_no_reshard.py": make_setup(
        backend="fsdp",
        precision="fp16",
        zero_stage=2,
        loss_scale=LossScale(initial_power=12, window=500, hysteresis=1, minimum=0),
    ),
    "ddp_tf32_checkpointed.py": make_setup(
        backend="ddp", precision="tf32", activation_checkpointing=True
    ),
    "ddp_bf16.py": make_setup(backend="ddp", precision="bf16", grad_comm_dtype="bf16"),
    "ddp_fp16.py": make_setup(
        backend="ddp",
        precision="fp16",
        grad_comm_dtype="fp16",
        loss_scale=LossScale(initial_power=12, window=500, hysteresis=1, minimum=0),
    ),
}


@pytest.mark.parametrize("name", SETUPS)
def test_a_setup_renders_the_text_that_a_person_has_read(
    name: str, pytestconfig: pytest.Config
) -> None:
    text = rendered(SETUPS[name])
    file = GOLDEN / name
    if pytestconfig.getoption("--update-golden", default=False):
        file.write_text(text, encoding="utf-8")
    assert file.is_file(), f"{file} is missing; write it with --update-golden"
    assert text == file.read_text(encoding="utf-8")


def test_every_golden_file_belongs_to_a_setup() -> None:
    assert {file.name for file in GOLDEN.iterdir() if file.is_file()} == set(SETUPS)


def rendered(setup: Setup) -> str:
    backend = backend_of(setup)
    return render(backend.template, backend.variables(setup), None)
