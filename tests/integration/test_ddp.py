"""DDP on two gloo ranks: its wire, its gates and readings, and scripts after `install()`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.backends import backend_of
from autotune.launch import Launch, Machine
from autotune.launch.describe import worker_environment
from autotune.numerics.gates import judge, refusal
from autotune.numerics.thresholds import Thresholds
from autotune.outcome import Outcome
from autotune.readings import Exposure, GradientReading, GradientSample, ScaleTrace
from autotune.render import render
from autotune.request import Measure, ReadingRequest
from autotune.setup import LossScale, Setup
from autotune.workload import Workload
from tests.build import TINY, make_setup
from tests.conftest import hostile, request_for
from tests.integration.test_probe import measured
from tests.integration.test_readings import COMMUNICATION_BOUND, ask

ROOT = Path(__file__).parents[2]
PARAMETERS = 64 * 32 * 2 + 2 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64 + 2 * 32) + 32


def ddp(precision: str = "fp32", wire: str = "fp32", **knobs: Any) -> Setup:
    return make_setup(backend="ddp", precision=precision, grad_comm_dtype=wire, **knobs)


SETUPS = [
    ddp(),
    ddp("fp32", "bf16"),
    ddp("bf16", "bf16"),
    ddp("bf16", "fp32"),
    ddp("fp16", "fp16"),
    ddp("bf16", "bf16", bucket_bytes=1),
]


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.key)
def test_gradients_cross_the_wire_once_a_step_in_the_dtype_that_was_asked_for(
    warm: Launch, setup: Setup
) -> None:
    found = measured(warm.probe(request_for(setup), 60))
    assert {(item.kind, item.dtype) for item in found.wire} == {
        ("all_reduce", setup.grad_comm_dtype)
    }
    bytes_each = 4 if setup.grad_comm_dtype == "fp32" else 2
    assert sum(item.bytes for item in found.wire) == PARAMETERS * bytes_each


def test_a_module_that_has_lost_its_hook_is_inert_and_says_what_was_on_the_wire(
    warm: Launch,
) -> None:
    asked = ddp("bf16", "bf16")
    honest = request_for(asked).rendered
    liar = honest.replace("        connect(wrapped)\n", "        pass\n")
    assert liar != honest
    outcome = warm.probe(request_for(asked, rendered=liar), 60)
    assert outcome.kind == "inert"
    assert outcome.reason is not None
    assert "asks for bf16 gradients; on the wire were" in outcome.reason
    assert "bytes of fp32 by all_reduce" in outcome.reason


def test_a_parameter_that_gets_no_gradient_keeps_its_bucket_from_being_reduced_and_is_inert(
    warm: Launch,
) -> None:
    asked = ddp()
    honest = request_for(asked).rendered
    unused = honest.replace(
        "    wrapped = Dist", "    model.unused = nn.Parameter(torch.zeros(8))\n    wrapped = Dist"
    )
    assert unused != honest
    outcome = warm.probe(request_for(asked, rendered=unused), 60)
    assert outcome.kind == "inert"
    assert outcome.reason is not None
    assert outcome.reason.startswith("Only 0 of ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("WIRE_DTYPE: torch.dtype = torch.bfloat16", "WIRE_DTYPE = torch.float32"), "float32"),
        (("| None = torch.bfloat16", "| None = torch.float16"), "computes in torch.float16"),
        (("BUCKET_BYTES = 25000000", "BUCKET_BYTES = 1"), "reduces 1 bytes"),
        (("def autocast(", "def cast("), "lacks autocast"),
    ],
)
def test_the_module_must_say_what_the_setup_says(
    warm: Launch, change: tuple[str, str], said: str
) -> None:
    setup = ddp("bf16", "bf16")
    text = request_for(setup).rendered
    assert change[0] in text
    outcome = warm.probe(request_for(setup, rendered=text.replace(*change)), 60)
    assert outcome.kind == "invalid"
    assert outcome.reason is not None
    assert said in outcome.reason


def test_it_trains_the_same_weights_on_the_same_batches_as_fsdp(warm: Launch) -> None:
    setups = (ddp(), make_setup(backend="fsdp"))
    mine, theirs = (measured(warm.probe(request_for(setup), 60)).losses for setup in setups)
    assert mine == pytest.approx(theirs, rel=1e-5)


def test_activation_checkpointing_computes_the_forward_again_in_the_backward(
    warm: Launch,
) -> None:
    calls = [
        measured(warm.probe(request_for(asked, workload=hostile(factory="counting")), 60))
        for asked in (ddp(), ddp(activation_checkpointing=True))
    ]
    plain, checkpointed = (found.tokens_per_step for found in calls)
    assert checkpointed == 2 * plain


def test_frozen_parameters_train_and_skipped_steps_are_counted(warm: Launch) -> None:
    measured(warm.probe(request_for(ddp("bf16"), workload=hostile(factory="frozen")), 60))
    # Gradients of a loss around 4 overflow at 2^22, since fp16 ends at 65504.
    scale = LossScale(initial_power=22, hysteresis=1, minimum=0)
    cold = Measure(warm_up_steps=1, warm_up_cap=1, timed_steps=12, end_to_end_steps=1)
    found = measured(warm.probe(request_for(ddp("fp16", loss_scale=scale), measure=cold), 60))
    assert 0 < found.skipped_steps < 12


def gradient_of(launch: Launch, setup: Setup, workload: Workload = TINY) -> GradientReading:
    backend = backend_of(setup)
    request = ReadingRequest(
        ask="gradient",
        setup=setup,
        rendered=render(backend.template, backend.variables(setup), None),
        workload=workload,
        steps=12,
        learning_rate=1e-3,
    )
    reading = launch.read(request, 60)
    assert not isinstance(reading, Outcome), (reading.reason, reading.log)
    assert isinstance(reading, GradientReading)
    return reading


@pytest.mark.parametrize(
    "setup",
    [ddp("fp32", "bf16"), ddp("bf16", "bf16"), ddp("fp16", "fp16")],
    ids=lambda setup: setup.key,
)
def test_it_passes_every_gate(warm: Launch, setup: Setup) -> None:
    reading = gradient_of(warm, setup)
    failed = refusal(judge(setup, reading, Thresholds.default()))
    assert failed is None, failed
    assert reading.applied_steps == 12
    assert reading.losses[-1] < reading.losses[0]


def test_fp32_applies_the_gradient_of_the_reference_to_the_last_bits(warm: Launch) -> None:
    reading = gradient_of(warm, ddp())
    assert reading.relative_error < 1e-5
    assert reading.losses == pytest.approx(reading.reference_losses, rel=1e-5)


def test_a_backward_without_communication_is_timed(
    warm: Launch,
) -> None:
    setup = ddp(micro_batch=1, gradient_accumulation=1)
    found = ask(warm, "exposure", setup, COMMUNICATION_BOUND, 6)
    assert isinstance(found, Exposure)
    assert len(found.synced_seconds) == len(found.unsynced_seconds) == 6


def test_traces_and_samples_are_taken_for_its_setups_too(warm: Launch) -> None:
    trace = ask(warm, "trace", ddp("fp16", "fp16"), TINY, 2)
    assert isinstance(trace, ScaleTrace)
    assert len(trace.finite_powers) == 2
    sample = ask(warm, "sample", ddp("bf16", "bf16"), TINY, 2)
    assert isinstance(sample, GradientSample)
    assert sample.micro_batches == 2


@pytest.fixture(scope="module")
def installed(
    machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What scripts had on the wire after `install()`, by the way in which they train."""
    folder = tmp_path_factory.mktemp("installed")
    setups = {
        "ddp_setup": ddp("fp32", "bf16", bucket_bytes=30_000),
        "fsdp_setup": make_setup(backend="fsdp", precision="bf16", grad_comm_dtype="fp32"),
    }
    for name, setup in setups.items():
        (folder / f"{name}.py").write_text(request_for(setup).rendered, encoding="utf-8")
    environment = worker_environment(machine, 2)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "-m", "tests.workloads.installed", str(folder)),
        ],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": f"{folder}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    file = folder / "seen.json"  # ranks may abort while they exit, in a thread of gloo
    assert file.is_file(), done.stderr
    found: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("way", ["ddp imported before", "ddp imported after", "ddp accelerate"])
def test_after_install_a_script_that_builds_ddp_has_the_wire_and_the_bucket(
    installed: dict[str, dict[str, Any]], way: str
) -> None:
    assert installed[way]["dtypes"] == ["bf16"]
    assert installed[way]["bucket_bytes"] == 60_000  # of fp32 gradients
    assert installed[way]["calls"] > 1
    assert installed[way]["find_unused_parameters"]
    assert installed[way]["error"] < 0.01


@pytest.mark.parametrize(("way", "before"), [("fsdp script", "fp32"), ("fsdp accelerate", "bf16")])
def test_after_install_a_script_that_calls_fully_shard_reduces_and_computes_as_measured(
    installed: dict[str, dict[str, Any]], way: str, before: str
) -> None:
    assert installed[f"{way}, not installed"]["dtypes"] == [before]
    assert installed[way]["dtypes"] == ["fp32"]
    assert installed[way]["computed"] == "torch.bfloat16"
