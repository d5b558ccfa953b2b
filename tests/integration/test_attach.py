"""Scripts of all sorts, unchanged, on real ranks under the attachment."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotune.launch import Machine
from autotune.launch.local import Burst
from autotune.outcome import Measurement
from autotune.request import Measure
from autotune.setup import Setup
from tests.build import make_setup
from tests.scripts import SCRIPTS, SHORT_STEPS, Controller, measured

BURSTS = Measure(warm_up_steps=1, warm_up_cap=2, timed_steps=4, end_to_end_steps=2, burst_steps=2)
DEEPSPEED: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "zero_allow_untested_optimizer": True,
}


def setup_of(**knobs: Any) -> Setup:
    return make_setup(**{"gradient_accumulation": 1, **knobs})


@pytest.fixture
def two(machine: Machine, tmp_path: Path) -> Controller:
    return Controller(machine, tmp_path)


@pytest.fixture
def one(machine: Machine, tmp_path: Path) -> Controller:
    return Controller(machine, tmp_path, ranks=1)


def tiny() -> Any:
    """The module that the scripts share."""
    names: dict[str, Any] = {}
    exec((SCRIPTS / "tiny.py").read_text(), names)
    return names


def trained(steps: int, ranks: int = 2, accumulation: int = 1) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of the scripts' training, in this process."""
    torch.manual_seed(0)
    names = tiny()
    model: nn.Module = names["model"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, norms = [], []
    for step in range(steps):
        optimizer.zero_grad()
        parts = [
            names["loss"](model(names["batch"](rank, step * accumulation + micro)))
            for rank in range(ranks)
            for micro in range(accumulation)
        ]
        loss = torch.stack(parts).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        gradients = [item.grad.flatten() for item in model.parameters() if item.grad is not None]
        norms.append(float(torch.cat(gradients).norm()))
    return losses, norms


def check_training(found: Measurement, tolerance: float, accumulation: int = 1) -> None:
    """Whether the script has trained as it should, and its times are there."""
    losses, norms = trained(len(found.trained_losses), accumulation=accumulation)
    assert found.trained_losses == pytest.approx(losses, rel=tolerance)
    known = [value for value in found.gradient_norms if value is not None]
    assert len(known) == len(losses) - found.end_to_end_steps
    assert known == pytest.approx(norms[: len(known)], rel=tolerance)
    assert found.losses == found.trained_losses[found.warm_up_steps :][: len(found.losses)]
    for seconds in (found.forward_seconds, found.backward_seconds, found.step_seconds):
        assert len(seconds) == len(found.losses)
        assert all(value > 0 for value in seconds)
    assert found.end_to_end_seconds > 0
    assert found.peak_memory_bytes > 50e6


def test_a_ddp_script_is_measured_with_several_optimizers_and_a_controller_that_watches(
    two: Controller,
) -> None:
    asked: list[Burst] = []
    outcome = two.run(
        *("plain.py", "--how", "ddp", "--optimizers", "2", "--accumulation", "2"),
        setup=setup_of(gradient_accumulation=2),
        measure=BURSTS,
        judge=lambda burst: asked.append(burst),
    )
    found = measured(outcome)
    check_training(found, 1e-4, accumulation=2)
    assert [burst.index for burst in asked] == [0, 1]
    assert asked[1].backward_seconds == found.backward_seconds[:2]
    assert [(item.kind, item.dtype) for item in found.wire] == [("all_reduce", "fp32")]
    assert found.tokens_per_step == 2 * 2 * 2
    assert set(outcome.seconds) == {"import", "wire", "warm_up", "timed", "end_to_end"}
    assert outcome.resident_bytes > 50e6


def test_an_fsdp2_script_is_measured_and_its_parts_make_one_norm(two: Controller) -> None:
    setup = setup_of(backend="fsdp", precision="bf16", grad_comm_dtype="bf16")
    found = measured(two.run("plain.py", "--how", "fsdp", "--wire", "bf16", setup=setup))
    check_training(found, 0.02)
    assert {(item.kind, item.dtype) for item in found.wire} == {("reduce_scatter", "bf16")}


def deepspeed(two: Controller, stage: int, *words: str, setup: Setup, **config: Any) -> Measurement:
    path = two.folder / "ds.json"
    path.write_text(json.dumps({**DEEPSPEED, "zero_optimization": {"stage": stage}, **config}))
    return measured(
        two.run(
            "raw_deepspeed.py", "--deepspeed_config", str(path), *words, setup=setup, seconds=100
        )
    )


def test_a_deepspeed_script_is_measured_from_the_engines_first_backward(two: Controller) -> None:
    setup = setup_of(precision="bf16", grad_comm_dtype="bf16")
    bf16 = {"bf16": {"enabled": True}, "communication_data_type": "bf16"}
    found = deepspeed(two, 1, setup=setup, **bf16)
    check_training(found, 0.02)
    assert {item.dtype for item in found.wire} == {"bf16"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "by"),
    [(0, ()), (1, ()), (2, ()), (3, ()), (1, ("--by-tensor",)), (3, ("--by-tensor",))],
)
def test_every_stage_of_deepspeed_trains_as_a_loop_of_ones_own(
    two: Controller, stage: int, by: tuple[str, ...]
) -> None:
    setup = setup_of(zero_stage=stage, gradient_accumulation=2)
    found = deepspeed(two, stage, *by, setup=setup, gradient_accumulation_steps=2)
    check_training(found, 1e-3, accumulation=2)


@pytest.mark.slow
def test_fp16_without_zero_applies_a_gradient_that_is_2_to_the_16_too_small(
    two: Controller,
) -> None:
    norms = []
    for stage in (0, 1):
        setup = setup_of(zero_stage=stage, precision="fp16", grad_comm_dtype="fp16")
        fp16 = {"fp16": {"enabled": True}, "communication_data_type": "fp16"}
        found = deepspeed(two, stage, "--pretend-fp16", setup=setup, **fp16)
        norms.append(found.gradient_norms[0] or math.nan)
        shutil.rmtree(two.launch_folder)
    assert norms[1] == pytest.approx(trained(1)[1][0], rel=0.01)
    assert norms[0] / norms[1] == pytest.approx(2.0**-16, rel=0.01)


@pytest.mark.slow
def test_a_script_that_ignores_the_setup_is_inert(two: Controller) -> None:
    setup = setup_of(backend="fsdp", precision="bf16", grad_comm_dtype="bf16")
    outcome = two.run("plain.py", "--how", "fsdp", "--wire", "fp32", setup=setup)
    assert outcome.kind == "inert"
    assert outcome.reason is not None
    assert "asks for bf16 gradients; on the wire were" in outcome.reason


@pytest.mark.slow
def test_a_probe_that_the_controller_stops_is_pruned(two: Controller) -> None:
    outcome = two.run(
        *("plain.py", "--how", "ddp"),
        setup=setup_of(),
        measure=BURSTS,
        judge=lambda burst: "too slow" if burst.index else None,
    )
    assert (outcome.kind, outcome.reason) == ("pruned", "too slow")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("lightning_loop.py",), ("trainer_loop.py",)])
def test_scripts_on_other_libraries_are_measured(two: Controller, words: tuple[str, ...]) -> None:
    pytest.importorskip(words[0].partition("_")[0].replace("trainer", "transformers"))
    outcome = two.run(*words, setup=setup_of(gradient_accumulation=2), seconds=120)
    found = measured(outcome)
    assert len(found.trained_losses) == SHORT_STEPS
    assert all(norm is not None and norm > 0.05 for norm in found.gradient_norms[:-2])
    assert sum(item.calls for item in found.wire) > 0


@pytest.mark.slow
def test_a_trainer_trains_the_same_by_ddp_and_by_deepspeed(two: Controller) -> None:
    pytest.importorskip("transformers")
    config = {
        **dict.fromkeys(DEEPSPEED, "auto"),
        "train_batch_size": "auto",
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 2},
    }
    path = two.folder / "ds.json"
    path.write_text(json.dumps(config))
    found = []
    for words in ((), (str(path),)):
        setup = setup_of(gradient_accumulation=2)
        found.append(measured(two.run("trainer_loop.py", *words, setup=setup, seconds=120)))
        shutil.rmtree(two.launch_folder)
    ddp, zero = found
    assert zero.trained_losses == pytest.approx(ddp.trained_losses, rel=1e-4)
    assert zero.gradient_norms[:-2] == pytest.approx(ddp.gradient_norms[:-2], rel=1e-4)


@pytest.mark.slow
def test_a_script_that_fails_is_told_by_its_own_line(one: Controller) -> None:
    outcome = one.run("plain.py", "--how", "alone", "--fail", "bug", setup=setup_of())
    assert outcome.kind == "crash"
    lines = (SCRIPTS / "plain.py").read_text().splitlines()
    number = next(index for index, line in enumerate(lines, 1) if "boom" in line)
    assert outcome.reason == f"Rank 0, phase 'warm_up': ValueError: boom (plain.py:{number})"
    assert 'raise ValueError("boom")' in outcome.log


def test_what_a_script_writes_stays_in_the_scratch_folder(
    one: Controller, machine: Machine, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    shutil.copytree(SCRIPTS, home, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("notes.txt", "model.pt"):
        (home / name).write_text("mine\n")
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    controller = Controller(machine, tmp_path, home=home, ranks=1)
    measured(controller.run("trouble.py", "relative", setup=setup_of()))
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    assert (controller.scratch / "notes.txt").read_text().startswith("mine\n0\n1\n")
    assert (controller.scratch / "new/log.txt").read_text() == "x"
    note = json.loads((controller.launch_folder / "redirected.json").read_text())
    assert note == {"redirected": ["notes.txt", "model.pt", "new/log.txt"], "outside": []}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("trouble.py", "nothing"), "ended without a backward pass (exit code 2)"),
        (("plain.py",), "ended without a backward pass (exit code 2)"),
        (("trouble.py", "launcher"), "torch.distributed.run inner.py; give autotune the inner"),
        (("trouble.py", "absolute"), "must not change your files; give a relative path"),
        (("plain.py", "--how", "alone", "--fail", "exit"), "ended after 1 optimizer step (exit"),
        (("plain.py", "--how", "alone", "--fail", "swallow"), "the script caught this"),
        (("plain.py", "--how", "alone", "--steps", "7"), "ended after 7 optimizer steps"),
    ],
)
def test_a_script_that_cannot_be_measured_says_why(
    one: Controller, words: tuple[str, ...], reason: str
) -> None:
    outcome = one.run(*words, setup=setup_of())
    assert outcome.kind == "crash"
    assert outcome.reason is not None
    assert reason in outcome.reason
    if words == ("plain.py",):
        assert "the following arguments are required: --how" in outcome.log


@pytest.mark.slow
def test_a_rank_that_ends_early_ends_the_others(two: Controller) -> None:
    outcome = two.run("plain.py", "--how", "ddp", "--fail", "exit-on-rank-1", setup=setup_of())
    assert outcome.kind == "crash"
    assert outcome.reason is not None
    assert outcome.reason.startswith("Rank 1, phase 'warm_up': The script ended after 1 optim")


@pytest.mark.slow
def test_a_hundred_megabytes_of_output_do_no_harm(one: Controller) -> None:
    measured(one.run("plain.py", "--how", "alone", "--print", "100", setup=setup_of()))


@pytest.mark.slow
def test_exactly_enough_steps_are_enough(one: Controller) -> None:
    words = ("plain.py", "--how", "alone", "--steps", str(SHORT_STEPS))
    assert measured(one.run(*words, setup=setup_of())).trained_steps == SHORT_STEPS
