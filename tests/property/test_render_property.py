"""What is rendered must be read by the library as the setup says, for every valid setup."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.backends import backend_of
from autotune.render import parse_json, render
from autotune.setup import DTYPE_BYTES, PRECISIONS, WIRE_DTYPES, LossScale, Setup
from tests.build import make_setup

SETTINGS = settings(deadline=None, max_examples=100)
MODEL_DTYPES = {"fp32": "fp32", "tf32": "fp32", "bf16": "bf16", "fp16": "fp16"}
COUNTS = st.integers(1, 10**6)


@st.composite
def deepspeed_setups(draw: st.DrawFn) -> Setup:
    stage = draw(st.integers(0, 3))
    buckets = st.none() if stage == 0 else st.integers(4, 2**40)
    overlap = st.none() if stage == 0 else st.sampled_from((None, True, False))
    scale = st.builds(
        LossScale,
        initial_power=st.integers(0, 32),
        window=COUNTS,
        hysteresis=COUNTS,
        minimum=COUNTS,
    )
    return draw(setups("deepspeed", stage, buckets, overlap, scale))


GRAD_SCALERS = st.builds(
    LossScale,
    initial_power=st.integers(0, 32),
    window=COUNTS,
    hysteresis=st.just(1),
    minimum=st.just(0),
)


@st.composite
def fsdp_setups(draw: st.DrawFn) -> Setup:
    stage = draw(st.sampled_from((2, 3)))
    return draw(setups("fsdp", stage, st.none(), st.none(), GRAD_SCALERS))


def ddp_setups() -> st.SearchStrategy[Setup]:
    return setups("ddp", 0, st.integers(1, 2**40), st.none(), GRAD_SCALERS)


@st.composite
def setups(
    draw: st.DrawFn,
    backend: Any,
    stage: int,
    buckets: st.SearchStrategy[int | None],
    overlap: st.SearchStrategy[bool | None],
    scale: st.SearchStrategy[LossScale],
) -> Setup:
    precision = draw(st.sampled_from(PRECISIONS))
    return Setup(
        backend=backend,
        precision=precision,
        grad_comm_dtype=draw(st.sampled_from(WIRE_DTYPES)),
        zero_stage=stage,
        bucket_bytes=draw(buckets),
        overlap_comm=draw(overlap),
        activation_checkpointing=draw(st.booleans()),
        micro_batch=draw(COUNTS),
        gradient_accumulation=draw(COUNTS),
        loss_scale=draw(scale) if precision == "fp16" else None,
    )


def rendered(setup: Setup) -> str:
    backend = backend_of(setup)
    return render(backend.template, backend.variables(setup), None)


@pytest.fixture(scope="module")
def read_config() -> Callable[[Setup], Any]:
    """DeepSpeed's own reading of the text that a setup renders."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    return lambda setup: DeepSpeedConfig(parse_json(rendered(setup), "the configuration"))


@SETTINGS
@given(setup=deepspeed_setups())
def test_every_value_of_the_json_is_the_setups(setup: Setup) -> None:
    config = parse_json(rendered(setup), "the configuration")
    assert config["train_micro_batch_size_per_gpu"] == setup.micro_batch
    assert config["gradient_accumulation_steps"] == setup.gradient_accumulation
    assert config["communication_data_type"] == setup.grad_comm_dtype
    assert config["fp16"]["enabled"] is (setup.precision == "fp16")
    assert config["bf16"]["enabled"] is (setup.precision == "bf16")
    assert config["zero_optimization"]["stage"] == setup.zero_stage
    assert config["zero_optimization"]["overlap_comm"] is (setup.overlap_comm is True)
    assert ("reduce_bucket_size" in config["zero_optimization"]) is (setup.bucket_bytes is not None)
    if setup.loss_scale is None:
        assert config["fp16"] == {"enabled": False}
    else:
        assert config["fp16"] == {
            "enabled": True,
            "loss_scale": 0,
            "initial_scale_power": setup.loss_scale.initial_power,
            "loss_scale_window": setup.loss_scale.window,
            "hysteresis": setup.loss_scale.hysteresis,
            "consecutive_hysteresis": False,
            "min_loss_scale": setup.loss_scale.minimum,
        }


@SETTINGS
@given(setup=deepspeed_setups())
def test_no_topology_and_nothing_that_slows_a_probe_is_written(setup: Setup) -> None:
    config = parse_json(rendered(setup), "the configuration")
    assert not {"train_batch_size", "comms_logger", "flops_profiler"} & set(config)
    assert config["wall_clock_breakdown"] is False
    assert config["timers"] == {"throughput": {"enabled": False}}


@SETTINGS
@given(setup=deepspeed_setups().filter(lambda setup: setup.bucket_bytes is not None))
def test_a_bucket_holds_the_same_bytes_whatever_the_wire_dtype(setup: Setup) -> None:
    assert setup.bucket_bytes is not None
    for dtype in WIRE_DTYPES:
        text = rendered(replace(setup, grad_comm_dtype=dtype))
        elements = parse_json(text, "it")["zero_optimization"]["reduce_bucket_size"]
        held = elements * DTYPE_BYTES[dtype]
        assert held <= setup.bucket_bytes < held + DTYPE_BYTES[dtype]


@SETTINGS
@given(setup=deepspeed_setups())
def test_deepspeed_reads_what_the_setup_says(
    read_config: Callable[[Setup], Any], setup: Setup
) -> None:
    config = read_config(setup)
    zero, fp16 = config.zero_config, config.float16_config
    assert config.train_micro_batch_size_per_gpu == setup.micro_batch
    assert config.gradient_accumulation_steps == setup.gradient_accumulation
    assert str(config.communication_data_type) == torch_name(setup.grad_comm_dtype)
    assert config.grad_accum_dtype == (
        "fp32" if setup.zero_stage >= 2 else MODEL_DTYPES[setup.precision]
    )
    assert (fp16.enabled, config.bfloat16_config.enabled) == (
        setup.precision == "fp16",
        setup.precision == "bf16",
    )
    assert config.bfloat16_config.check_grad_overflow is True
    assert config.gradient_clipping == 1.0
    assert int(zero.stage) == setup.zero_stage
    assert zero.overlap_comm is bool(setup.overlap_comm)
    assert zero.reduce_scatter is zero.contiguous_gradients is True
    if setup.bucket_bytes is not None:
        assert zero.reduce_bucket_size == setup.bucket_bytes // DTYPE_BYTES[setup.grad_comm_dtype]
    assert config.timers_config.enabled is config.wall_clock_breakdown is False
    assert config.comms_config.comms_logger_enabled is False
    assert config.torch_autocast_enabled is False


@SETTINGS
@given(setup=deepspeed_setups().filter(lambda setup: setup.precision == "fp16"))
def test_deepspeed_builds_the_loss_scaler_that_the_setup_says(
    read_config: Callable[[Setup], Any], setup: Setup
) -> None:
    from deepspeed.runtime.fp16.loss_scaler import CreateLossScaler

    fp16 = read_config(setup).float16_config
    scaler = CreateLossScaler(
        dtype=fp16_dtype(),
        static_loss_scale=fp16.loss_scale,
        dynamic_scaling=fp16.loss_scale == 0,
        dynamic_loss_args=fp16.dynamic_loss_scale_args(),
    )
    assert setup.loss_scale is not None
    assert scaler.cur_scale == 2.0**setup.loss_scale.initial_power
    assert scaler.scale_window == setup.loss_scale.window
    assert scaler.delayed_shift == scaler.cur_hysteresis == setup.loss_scale.hysteresis
    assert scaler.min_scale == setup.loss_scale.minimum
    assert scaler.consecutive_hysteresis is False


@SETTINGS
@given(setup=fsdp_setups())
def test_the_fsdp_module_imports_and_does_what_the_setup_says(setup: Setup) -> None:
    module = imported(rendered(setup))
    policy = module.policy()
    narrow = setup.precision in ("bf16", "fp16")
    assert str(policy.param_dtype) == (torch_name(setup.precision) if narrow else "None")
    assert str(policy.reduce_dtype) == torch_name(setup.grad_comm_dtype)
    assert module.RESHARD_AFTER_FORWARD is (setup.zero_stage == 3)
    says_what_both_say(module, setup)


@SETTINGS
@given(setup=ddp_setups())
def test_the_ddp_module_imports_and_does_what_the_setup_says(setup: Setup) -> None:
    module = imported(rendered(setup))
    narrow = setup.precision in ("bf16", "fp16")
    assert str(module.COMPUTE_DTYPE) == (torch_name(setup.precision) if narrow else "None")
    assert str(module.WIRE_DTYPE) == torch_name(setup.grad_comm_dtype)
    # DDP makes whole bytes of its MiB again, and counts float32 gradients.
    fp32_bytes = int(module.bucket_cap_mb() * 2**20)
    assert setup.bucket_bytes is not None
    assert fp32_bytes * DTYPE_BYTES[setup.grad_comm_dtype] == setup.bucket_bytes * 4
    says_what_both_say(module, setup)


def says_what_both_say(module: ModuleType, setup: Setup) -> None:
    written = {name: value for name, value in vars(module).items() if name.isupper()}
    wanted = {
        "ACTIVATION_CHECKPOINTING": setup.activation_checkpointing,
        "MATMUL_PRECISION": "high" if setup.precision == "tf32" else "highest",
        "MICRO_BATCH": setup.micro_batch,
        "GRADIENT_ACCUMULATION": setup.gradient_accumulation,
        "GRADIENT_CLIPPING": 1.0,
    }
    assert wanted.items() <= written.items()
    scaler = module.scaler("cpu")
    assert scaler.is_enabled() is (setup.precision == "fp16")
    if setup.loss_scale is not None:
        assert scaler.get_scale() == 2.0**setup.loss_scale.initial_power
        assert scaler.get_growth_interval() == setup.loss_scale.window
        assert (scaler.get_growth_factor(), scaler.get_backoff_factor()) == (2.0, 0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"micro_batch": 3},
        {"gradient_accumulation": 3},
        {"grad_comm_dtype": "fp16"},
        {"zero_stage": 3},
        {"bucket_bytes": 4000},
        {"overlap_comm": True},
        {"precision": "fp32"},
    ],
    ids=str,
)
def test_a_changed_knob_changes_the_text(change: dict[str, Any]) -> None:
    base = make_setup(precision="bf16", grad_comm_dtype="bf16", zero_stage=2, overlap_comm=False)
    assert rendered(replace(base, **change)) != rendered(base)


def torch_name(dtype: str) -> str:
    return {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}[dtype]


def fp16_dtype() -> Any:
    import torch

    return torch.float16


def imported(text: str) -> ModuleType:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fsdp_setup.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("rendered_fsdp_setup", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
