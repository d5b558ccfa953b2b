from __future__ import annotations

import pytest

from autotune.backends import BACKENDS_BY_NAME, RESTRICTIONS, backend_of
from autotune.setup import BACKENDS, LossScale, Setup
from tests.build import make_context, make_setup


def refused_by(setup: Setup) -> list[str]:
    return [item.name for item in RESTRICTIONS if item.refuses(setup, make_context())]


def test_every_backend_of_a_setup_has_its_own_template_and_file() -> None:
    assert set(BACKENDS_BY_NAME) == set(BACKENDS)
    assert backend_of(make_setup()).file_name == "ds_config.json"
    assert backend_of(make_setup(backend="fsdp")).file_name == "fsdp_setup.py"
    assert backend_of(make_setup(backend="ddp")).file_name == "ddp_setup.py"
    assert len({backend.template for backend in BACKENDS_BY_NAME.values()}) == len(BACKENDS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_knob_reaches_the_template_under_its_own_name(backend: str) -> None:
    setup = make_setup(backend=backend, precision="fp16", activation_checkpointing=True)
    variables = backend_of(setup).variables(setup)
    kept = {name: value for name, value in setup.to_dict().items() if name != "overlap_comm"}
    assert kept.items() <= variables.items()


@pytest.mark.parametrize(
    ("stage", "precision", "dtype"),
    [
        (0, "bf16", "bf16"),
        (1, "bf16", "bf16"),
        (1, "tf32", "fp32"),
        (0, "fp16", "fp16"),
        (2, "fp16", "fp32"),
        (3, "bf16", "fp32"),
    ],
)
def test_gradients_accumulate_in_fp32_only_where_that_keeps_the_optimizer_class(
    stage: int, precision: str, dtype: str
) -> None:
    setup = make_setup(zero_stage=stage, precision=precision)
    assert backend_of(setup).variables(setup)["grad_accum_dtype"] == dtype


@pytest.mark.parametrize(
    ("setup", "restriction"),
    [
        (make_setup(backend="fsdp", zero_stage=1), "fsdp-shards-gradients"),
        (make_setup(bucket_bytes=3), "bucket-holds-an-element"),
        (make_setup(bucket_bytes=1, grad_comm_dtype="bf16"), "bucket-holds-an-element"),
        (
            make_setup(precision="fp16", loss_scale=LossScale(initial_power=3, minimum=9)),
            "scale-starts-above-its-floor",
        ),
    ],
)
def test_a_setup_that_the_backend_cannot_train_is_refused(setup: Setup, restriction: str) -> None:
    assert refused_by(setup) == [restriction]


@pytest.mark.parametrize(
    "setup",
    [
        make_setup(zero_stage=0, bucket_bytes=None),
        make_setup(bucket_bytes=2, grad_comm_dtype="bf16"),
        make_setup(precision="fp16", loss_scale=LossScale(initial_power=3, minimum=8)),
        make_setup(backend="fsdp", zero_stage=2),
        make_setup(backend="fsdp", precision="fp16"),
        make_setup(backend="ddp", bucket_bytes=1),
        make_setup(backend="ddp", precision="fp16", grad_comm_dtype="fp16"),
    ],
)
def test_a_setup_that_the_backend_can_train_is_not_refused(setup: Setup) -> None:
    assert refused_by(setup) == []
