from autotune.scales import DEFAULTS, all_scales, first_scale, fitted
from autotune.setup import LossScale


def test_what_is_probed_first_is_the_frameworks_own_where_the_lists_allow_it() -> None:
    assert first_scale({}, "deepspeed") == DEFAULTS["deepspeed"]
    assert first_scale({"window": (500, 1000)}, "deepspeed") == LossScale()
    assert first_scale({"window": (500, 800)}, "deepspeed") == LossScale(window=500)


def test_every_policy_is_there_once_and_none_starts_below_its_floor() -> None:
    found = all_scales({"initial_power": (2, 4), "minimum": (1, 16)}, "deepspeed")
    assert len(set(found)) == len(found)
    assert all(2**scale.initial_power >= scale.minimum for scale in found)
    assert {(scale.initial_power, scale.minimum) for scale in found} == {(2, 1), (4, 1), (4, 16)}


def test_policies_that_a_scaler_cannot_tell_apart_are_one() -> None:
    listed = {"initial_power": (8,), "window": (500,), "hysteresis": (1, 2), "minimum": (1, 16)}
    assert all_scales(listed, "grad-scaler") == [
        LossScale(initial_power=8, window=500, hysteresis=1, minimum=0)
    ]
    assert len(all_scales(listed, "deepspeed-stage-0")) == 2


def test_the_defaults_fit_their_scalers() -> None:
    assert all(fitted(scale, scaler) == scale for scaler, scale in DEFAULTS.items())
    assert all(scale in all_scales({}, scaler) for scaler, scale in DEFAULTS.items())


def test_the_first_scale_does_not_start_below_its_floor_where_another_one_is_listed() -> None:
    listed = {"initial_power": (2, 12), "minimum": (16,)}
    assert first_scale(listed, "deepspeed").initial_power == 12
    none = first_scale({"initial_power": (2,), "minimum": (16,)}, "deepspeed")
    assert (none.initial_power, none.minimum) == (2, 16)
