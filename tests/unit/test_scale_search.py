"""The search for a loss scale: what is proposed, and what a kill leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.numerics.policy import Limits, PolicyScore, choose, evaluate
from autotune.scales import DEFAULT_SCALE_AXES, DEFAULTS, all_scales
from autotune.search import Store
from autotune.search.loss_scale import BATCH, MOST_POLICIES, search_scales
from autotune.search.store import LOSS_SCALE
from autotune.setup import LossScale, Scaler
from tests.readings import make_trace
from tests.scripted import Killed

STEPS = 400
SCORED = Limits()


class Replays:
    """Scores policies on a trace, and remembers which."""

    def __init__(self, power: int = 14, scaler: Scaler = "deepspeed") -> None:
        self.trace, self.scaler = make_trace(power), scaler
        self.batches: list[list[LossScale]] = []

    def __call__(self, scales: Sequence[LossScale]) -> list[PolicyScore]:
        self.batches.append(list(scales))
        return evaluate(self.scaler, scales, self.trace, STEPS, replicates=1)

    @property
    def all(self) -> list[LossScale]:
        return [scale for batch in self.batches for scale in batch]


def search(
    policies: Sequence[LossScale],
    replays: Replays,
    store: Store | None = None,
    first: Sequence[LossScale] = (),
) -> list[PolicyScore]:
    kept = Store(None, create=True) if store is None else store
    return search_scales(kept, "x", policies, replays.scaler, first, replays, SCORED)


LISTS = st.fixed_dictionaries(
    {
        "initial_power": st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True),
        "window": st.lists(st.sampled_from([100, 500, 1000]), min_size=1, max_size=2, unique=True),
        "hysteresis": st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=2, unique=True),
        "minimum": st.lists(st.sampled_from([1, 4, 16]), min_size=1, max_size=2, unique=True),
    }
)


@settings(max_examples=15, deadline=None)
@given(lists=LISTS, scaler=st.sampled_from(["deepspeed", "deepspeed-stage-0", "grad-scaler"]))
def test_a_small_space_of_policies_is_replayed_whole_and_nothing_else(
    lists: dict[str, list[int]], scaler: Scaler
) -> None:
    policies = all_scales({name: tuple(values) for name, values in lists.items()}, scaler)
    if not policies:
        return
    replays = Replays(scaler=scaler)
    scores = search(policies, replays)
    assert {score.policy for score in scores} == set(policies)
    assert len(replays.all) == len(set(replays.all)) == len(policies)


def test_a_policy_below_its_own_floor_does_not_take_the_place_of_a_real_one() -> None:
    policies = all_scales(
        {"initial_power": (2, 12), "window": (1000,), "hysteresis": (2,)}, "deepspeed"
    )
    floors = {scale.minimum for scale in policies if scale.initial_power == 2}
    assert floors == {1}
    assert {score.policy for score in search(policies, Replays())} == set(policies)


def wide_policies() -> list[LossScale]:
    return all_scales(DEFAULT_SCALE_AXES, "deepspeed")


def test_a_large_space_is_sampled_and_what_is_likely_comes_first() -> None:
    policies, replays = wide_policies(), Replays()
    first = [LossScale(), policies[-1]]
    scores = search(policies, replays, first=first)
    assert len(policies) > MOST_POLICIES >= len(scores) > BATCH
    assert replays.all[:2] == first
    assert set(replays.all) <= set(policies)
    assert [score.policy for score in scores] == replays.all


def test_no_sampled_policy_starts_below_its_floor_even_where_gradients_are_huge() -> None:
    """The largest finite scale is 2 ** 3, so the sampler is drawn to the smallest powers."""
    replays = Replays(power=3)
    search(wide_policies(), replays)
    low = [scale for scale in replays.all if scale.initial_power < 4]
    assert low
    assert {scale.minimum for scale in low} == {1}


def test_the_study_holds_every_policy_with_its_score_and_what_it_breaks(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    policies = all_scales(
        {"initial_power": (12, 16), "window": (1000,), "hysteresis": (2,), "minimum": (1,)},
        "deepspeed",
    )
    search(policies, Replays(), store)
    study = optuna.load_study(study_name=f"{LOSS_SCALE} x", storage=store.storage)
    by_power = {trial.params["initial_power"]: trial for trial in study.trials}
    assert by_power.keys() == {12, 16}
    assert (
        by_power[12].constraints["headroom_bits"] <= 0 < by_power[16].constraints["headroom_bits"]
    )
    assert all(trial.value is not None for trial in study.trials)


class Dying(Replays):
    """Killed before it scores batch ``last``."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last

    def __call__(self, scales: Sequence[LossScale]) -> list[PolicyScore]:
        if len(self.batches) == self._last:
            raise Killed
        return super().__call__(scales)


@pytest.mark.parametrize("last", [0, 1, 3])
@pytest.mark.parametrize("wide", [False, True])
def test_a_search_that_was_killed_in_the_middle_comes_to_the_same_scores(
    last: int, wide: bool
) -> None:
    every = all_scales({}, "deepspeed")
    policies = every if wide else every[: 4 * BATCH - 10]
    assert (len(policies) > MOST_POLICIES) is wide
    first = [LossScale(), policies[-1]]
    whole = search(policies, Replays(), first=first)
    store = Store(None, create=True)
    with pytest.raises(Killed):
        search(policies, Dying(last), store, first)
    assert search(policies, Replays(), store, first) == whole
    study = optuna.load_study(study_name=f"{LOSS_SCALE} x", storage=store.storage)
    assert len(study.trials) == min(MOST_POLICIES, len(policies))
    assert choose(whole, DEFAULTS["deepspeed"], SCORED) is not None
