from collections.abc import Mapping

import pytest

from autotune.backends import RESTRICTIONS
from autotune.errors import UsageError
from autotune.setup import Setup
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


def test_loss_scale_values_are_searched_for_fp16_only() -> None:
    found = space(
        {
            "backend": ("deepspeed",),
            "precision": ("bf16", "fp16"),
            "grad_comm_dtype": ("bf16",),
            "zero_stage": (1,),
            "bucket_bytes": (25_000_000,),
            "loss_scale.window": (500, 1000),
        }
    ).valid()
    windows = [setup.loss_scale.window if setup.loss_scale else None for setup in found]
    assert windows == [None, 500, 1000]


def test_hysteresis_and_floor_collapse_where_the_scaler_has_none() -> None:
    axes = {
        "backend": ("fsdp",),
        "precision": ("fp16",),
        "grad_comm_dtype": ("fp16",),
        "zero_stage": (3,),
        "loss_scale.hysteresis": (1, 2, 4),
        "loss_scale.minimum": (1, 16),
    }
    (setup,) = space(axes).valid()
    assert setup.loss_scale is not None
    assert (setup.loss_scale.hysteresis, setup.loss_scale.minimum) == (1, 0)


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


def test_with_one_rank_the_wire_axis_is_closed() -> None:
    found = space({"grad_comm_dtype": ("bf16", "fp32")}, world_size=1).valid()
    assert {setup.grad_comm_dtype for setup in found} == {"fp32"}


def test_overlap_is_searched_on_cuda_only() -> None:
    axes = {"backend": ("deepspeed",), "precision": ("bf16",), "overlap_comm": (True, False)}
    on_cpu = {setup.overlap_comm for setup in space(axes).valid()}
    on_cuda = {setup.overlap_comm for setup in space(axes, device="cuda").valid()}
    assert (on_cpu, on_cuda) == ({None}, {True, False})


def test_removed_counts_add_up_with_the_valid_setups() -> None:
    whole = space({})
    assert sum(removed(whole).values()) + len(whole.valid()) == len(list(whole.choices()))


def test_every_valid_setup_is_reached_by_walking_its_choices() -> None:
    whole = space({"precision": ("bf16", "fp16"), "loss_scale.window": (100, 200)})
    for setup, chosen in whole.valid().items():
        assert whole.resolve(chosen) == setup


def test_keys_of_different_setups_differ_and_round_trip_through_json_types() -> None:
    valid = space({"loss_scale.window": (100, 200)}, device="cuda", tf32=True).valid()
    assert len({setup.key for setup in valid}) == len(valid)
    assert all(Setup.from_dict(setup.to_dict()) == setup for setup in valid)


def test_the_baseline_is_fp32_when_the_file_names_none() -> None:
    assert make_baseline({}, space({})).key == "deepspeed.z1.fp32.wire-fp32.mb2x2.bucket100000000"


def test_the_baseline_takes_what_the_space_fixes_and_the_wire_follows_its_precision() -> None:
    fixed = space({"backend": ("fsdp",), "precision": ("bf16", "fp32")})
    assert make_baseline({"precision": "bf16"}, fixed).key == "fsdp.z3.bf16.wire-bf16.mb2x2"


def test_a_baseline_outside_the_space_is_allowed() -> None:
    only_bf16 = space({"precision": ("bf16", "fp16")})
    baseline = make_baseline({"precision": "fp32"}, only_bf16)
    assert baseline not in only_bf16.valid()


def test_a_baseline_that_cannot_be_trained_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="tf32-needs-ampere"):
        make_baseline({"precision": "tf32"}, space({}))


def test_a_space_too_large_to_enumerate_is_refused() -> None:
    many = tuple(range(1, 100))
    axes = {
        "loss_scale.window": many,
        "loss_scale.initial_power": many,
        "loss_scale.minimum": many,
    }
    with pytest.raises(UsageError, match="over 100000 combinations"):
        space(axes).valid()
