from collections.abc import Mapping
from dataclasses import replace

import pytest

from autotune.backends import RESTRICTIONS
from autotune.errors import UsageError
from autotune.setup import LossScale, Setup
from autotune.space import Space, make_baseline, make_space
from tests.build import TINY, make_context


def space(axes: Mapping[str, tuple[object, ...]], **context: object) -> Space:
    return make_space(axes, make_context(**context), RESTRICTIONS)


def removed(of: Space) -> dict[str, int]:
    return {item.restriction: item.count for item in of.removed()}


def test_knobs_that_do_not_exist_for_a_backend_are_none_and_make_no_duplicates() -> None:
    found = space(
        {"backend": ("fsdp",), "precision": ("bf16",), "grad_comm_dtype": ("bf16",)}
    ).valid()
    assert [setup.key for setup in found] == [
        "fsdp.z2.bf16.wire-bf16.mb2x2",
        "fsdp.z3.bf16.wire-bf16.mb2x2",
    ]


def test_ddp_is_tried_where_it_is_asked_for_and_has_no_stages_and_no_switch_for_overlap() -> None:
    axes = {"precision": ("bf16",), "grad_comm_dtype": ("bf16",), "bucket_bytes": (1000, 2000)}
    assert "ddp" not in {setup.backend for setup in space(axes).valid()}
    asked = space({**axes, "backend": ("ddp",), "overlap_comm": (True, False)}, device="cuda")
    assert [setup.key for setup in asked.valid()] == [
        "ddp.z0.bf16.wire-bf16.mb2x2.bucket1000",
        "ddp.z0.bf16.wire-bf16.mb2x2.bucket2000",
    ]
    reasons = {item.knob: item.reason for item in asked.closed()}
    assert set(reasons) == {"zero_stage", "overlap_comm"}
    assert "whole on every rank" in reasons["zero_stage"]


def test_loss_scales_are_no_axes_since_they_leave_no_trace_in_step_times() -> None:
    axes = {
        "backend": ("deepspeed",),
        "precision": ("bf16", "fp16"),
        "grad_comm_dtype": ("bf16",),
        "zero_stage": (1,),
        "bucket_bytes": (25_000_000,),
    }
    found = space({**axes, "loss_scale.window": (500, 2000), "loss_scale.initial_power": (4, 16)})
    scales = [setup.loss_scale for setup in found.valid()]
    assert scales == [None, LossScale(initial_power=16, window=500)]


def test_a_chosen_loss_scale_replaces_the_usual_one() -> None:
    chosen = LossScale(initial_power=9, window=2000)
    whole = space({"backend": ("deepspeed",), "precision": ("fp16",), "zero_stage": (0, 1)})
    known = replace(whole, policies={("deepspeed", TINY.micro_batch): chosen})
    by_stage = {setup.zero_stage: setup.loss_scale for setup in known.valid()}
    assert by_stage == {0: LossScale(hysteresis=1), 1: chosen}


def test_hysteresis_and_floor_collapse_where_the_scaler_has_none() -> None:
    axes = {
        "backend": ("fsdp",),
        "precision": ("fp16",),
        "grad_comm_dtype": ("fp16",),
        "zero_stage": (3,),
        "loss_scale.hysteresis": (2, 4),
        "loss_scale.minimum": (1, 16),
    }
    (setup,) = space(axes).valid()
    assert setup.loss_scale is not None
    assert (setup.loss_scale.hysteresis, setup.loss_scale.minimum) == (1, 0)


def test_the_baseline_keeps_the_loss_scale_that_the_user_names() -> None:
    whole = space({"precision": ("fp16",), "loss_scale.window": (500,)})
    known = replace(whole, policies={("deepspeed", TINY.micro_batch): LossScale(initial_power=3)})
    baseline = make_baseline({"loss_scale.initial_power": 12}, known)
    assert baseline.loss_scale == LossScale(initial_power=12, window=500)


@pytest.mark.parametrize(
    ("axes", "context", "restriction"),
    [
        ({"precision": ("tf32",)}, {"tf32": False}, "tf32-needs-ampere"),
        ({"precision": ("bf16",)}, {"device": "cuda", "bf16": "emulated"}, "bf16-is-emulated"),
        ({"precision": ("fp16",)}, {"fp16": "none"}, "fp16-not-supported"),
        (
            {"precision": ("bf16",), "grad_comm_dtype": ("fp16",)},
            {},
            "fp16-wire-needs-loss-scale",
        ),
        ({"backend": ("fsdp",), "zero_stage": (0, 1)}, {}, "fsdp-shards-gradients"),
        ({"micro_batch": (3,)}, {}, "global-batch-is-kept"),
    ],
)
def test_an_emptied_space_names_the_restriction_that_emptied_it(
    axes: dict[str, tuple[object, ...]], context: dict[str, object], restriction: str
) -> None:
    with pytest.raises(UsageError, match=restriction):
        space(axes, **context).valid()


def test_bf16_on_a_cpu_without_bf16_units_is_slow_but_allowed() -> None:
    assert space({"precision": ("bf16",)}, device="cpu", bf16="emulated").valid()


def test_gradient_accumulation_follows_the_micro_batch_so_that_the_global_batch_is_kept() -> None:
    found = space({"micro_batch": (1, 2, 3, 4, 8)}).valid()
    kept = {(setup.micro_batch, setup.gradient_accumulation) for setup in found}
    assert kept == {(1, 4), (2, 2), (4, 1)}
    assert all(a * b == TINY.samples_per_rank for a, b in kept)


def test_with_one_rank_the_wire_axis_is_closed_and_says_why() -> None:
    found = space({"grad_comm_dtype": ("bf16", "fp32")}, world_size=1)
    assert {setup.grad_comm_dtype for setup in found.valid()} == {"fp32"}
    (closed,) = (item for item in found.closed() if item.knob == "grad_comm_dtype")
    assert closed.reason == "with one rank no gradient crosses a wire"


def test_a_knob_with_a_choice_is_not_closed() -> None:
    assert "grad_comm_dtype" not in {item.knob for item in space({}).closed()}


def test_overlap_is_searched_on_cuda_only() -> None:
    axes = {"backend": ("deepspeed",), "precision": ("bf16",), "overlap_comm": (True, False)}
    on_cpu = {setup.overlap_comm for setup in space(axes).valid()}
    on_cuda = {setup.overlap_comm for setup in space(axes, device="cuda").valid()}
    assert (on_cpu, on_cuda) == ({None}, {True, False})


def test_removed_counts_add_up_with_the_valid_setups() -> None:
    whole = space({})
    assert sum(removed(whole).values()) + len(whole.valid()) == len(list(whole.choices()))


def test_every_valid_setup_is_reached_by_walking_its_choices() -> None:
    whole = space({"precision": ("bf16", "fp16"), "micro_batch": (1, 2)})
    for setup, chosen in whole.valid().items():
        assert whole.resolve(chosen) == setup


def test_keys_of_different_setups_differ_and_round_trip_through_json_types() -> None:
    valid = space({"micro_batch": (1, 2)}, device="cuda", tf32=True).valid()
    assert len({setup.key for setup in valid}) == len(valid)
    assert all(Setup.from_dict(setup.to_dict()) == setup for setup in valid)


def test_the_baseline_is_fp32_when_the_file_names_none() -> None:
    assert make_baseline({}, space({})).key == "deepspeed.z1.fp32.wire-fp32.mb2x2.bucket100000000"


def test_the_baseline_takes_what_the_space_fixes_and_the_wire_follows_its_precision() -> None:
    fixed = space({"backend": ("fsdp",), "precision": ("bf16", "fp32")})
    assert make_baseline({"precision": "bf16"}, fixed).key == "fsdp.z3.bf16.wire-bf16.mb2x2"


def test_a_baseline_of_ddp_has_stage_0_and_the_scaler_of_torch() -> None:
    baseline = make_baseline({"backend": "ddp", "precision": "fp16"}, space({}))
    assert (baseline.zero_stage, baseline.bucket_bytes) == (0, 100_000_000)
    assert baseline.grad_comm_dtype == "fp16"
    assert baseline.loss_scale is not None
    assert (baseline.loss_scale.hysteresis, baseline.loss_scale.minimum) == (1, 0)


def test_a_baseline_outside_the_space_is_allowed() -> None:
    only_bf16 = space({"precision": ("bf16", "fp16")})
    baseline = make_baseline({"precision": "fp32"}, only_bf16)
    assert baseline not in only_bf16.valid()


def test_a_baseline_that_cannot_be_trained_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="tf32-needs-ampere"):
        make_baseline({"precision": "tf32"}, space({}))


def test_a_space_too_large_to_enumerate_is_refused() -> None:
    many = tuple(range(1, 100_000))
    axes = {"bucket_bytes": many, "backend": ("deepspeed",)}
    with pytest.raises(UsageError, match="over 100000 combinations"):
        space(axes).valid()
