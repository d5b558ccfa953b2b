"""The search for a loss scale: Optuna proposes policies, replay scores them, nothing is probed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import optuna
from optuna.study import Study
from optuna.trial import Trial

from autotune.numerics.policy import Limits, PolicyScore, excesses
from autotune.scales import fitted
from autotune.search.search import make_sampler
from autotune.search.store import LOSS_SCALE, Store
from autotune.setup import LossScale, Scaler

BATCH = 48  # policies that are replayed at once; a replay costs little more for many than for one
MOST_POLICIES = 4 * BATCH
Replay = Callable[[Sequence[LossScale]], Sequence[PolicyScore]]


def search_scales(
    store: Store,
    name: str,
    policies: Sequence[LossScale],
    scaler: Scaler,
    first: Sequence[LossScale],
    replay: Replay,
    limits: Limits,
) -> list[PolicyScore]:
    """Scores of the policies that were proposed, each once.

    A study of this name that a killed controller left half-done is begun again: a sampler that
    goes on from the middle proposes others than one that runs through.

    Args:
        store: The run; the search is a study of its own in it.
        name: Of the study.
        policies: All that may be proposed; more than `MOST_POLICIES` are sampled, fewer are all
            tried.
        scaler: Whose rules are replayed.
        first: Proposed before any other; some of ``policies``.
        replay: Scores policies, in their order.
        limits: What makes a policy infeasible.
    """
    exhaustive = len(policies) <= MOST_POLICIES
    study = _fresh_study(store, name, exhaustive=exhaustive)
    values = _values(policies)
    # Not every combination of values is a policy, so brute force would propose others as well.
    for scale in dict.fromkeys((*first, *policies) if exhaustive else first):
        study.enqueue_trial({field: getattr(scale, field) for field in values})
    found: dict[LossScale, PolicyScore] = {}
    trials = min(MOST_POLICIES, len(policies))
    for start in range(0, trials, BATCH):
        batch = min(BATCH, trials - start)
        asked = [_ask(study, values, scaler) for _ in range(batch)]
        new = list(dict.fromkeys(scale for _, scale in asked if scale not in found))
        found.update(zip(new, replay(new), strict=True))
        for trial, scale in asked:
            _tell(study, trial, found[scale], limits)
    return list(found.values())


def _fresh_study(store: Store, name: str, *, exhaustive: bool) -> Study:
    sampler = make_sampler(exhaustive=exhaustive, seed=0)
    study = store.scale_study(name, sampler)
    if study.trials:
        optuna.delete_study(study_name=f"{LOSS_SCALE} {name}", storage=store.storage)
        study = store.scale_study(name, sampler)
    return study


def _values(policies: Sequence[LossScale]) -> Mapping[str, list[int]]:
    """Fields of which there is a choice."""
    fields = ("initial_power", "window", "hysteresis", "minimum")
    return {field: sorted({getattr(scale, field) for scale in policies}) for field in fields}


def _ask(
    study: Study, values: Mapping[str, Sequence[int]], scaler: Scaler
) -> tuple[Trial, LossScale]:
    trial = study.ask()
    chosen = {field: trial.suggest_categorical(field, found) for field, found in values.items()}
    return trial, _startable(fitted(LossScale(**chosen), scaler), values["minimum"])


def _startable(scale: LossScale, floors: Sequence[int]) -> LossScale:
    """The scale, with the highest floor that it does not start below."""
    start = 2**scale.initial_power
    return replace(
        scale, minimum=max(floor for floor in floors if floor <= min(start, scale.minimum))
    )


def _tell(study: Study, trial: Trial, score: PolicyScore, limits: Limits) -> None:
    for name, excess in excesses(score, limits).items():
        trial.set_constraint(name, excess)
    study.tell(trial, score.useful_step_fraction)
