"""The search for a loss scale: Optuna proposes policies, replay scores them, nothing is probed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from optuna.study import Study
from optuna.trial import Trial

from autotune.numerics.policy import Limits, PolicyScore, excesses
from autotune.scales import fitted
from autotune.search.search import make_sampler
from autotune.search.store import Store
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

    Args:
        store: The run; the search is a study of its own in it.
        name: Of the study.
        policies: All that may be proposed; more than `MOST_POLICIES` are sampled.
        scaler: Whose rules are replayed.
        first: Proposed before any other.
        replay: Scores policies, in their order.
        limits: What makes a policy infeasible.
    """
    exhaustive = len(policies) <= MOST_POLICIES
    study = store.scale_study(name, make_sampler(exhaustive=exhaustive, seed=0))
    values = _values(policies)
    for scale in first:
        study.enqueue_trial({field: getattr(scale, field) for field in values}, skip_if_exists=True)
    found: dict[LossScale, PolicyScore] = {}
    for _ in range(0, min(MOST_POLICIES, len(policies)), BATCH):
        asked = [_ask(study, values, scaler) for _ in range(min(BATCH, len(policies)))]
        new = list(dict.fromkeys(scale for _, scale in asked if scale not in found))
        found.update(zip(new, replay(new), strict=True))
        for trial, scale in asked:
            _tell(study, trial, found[scale], limits)
    return list(found.values())


def _values(policies: Sequence[LossScale]) -> Mapping[str, list[int]]:
    """Fields of which there is a choice."""
    fields = ("initial_power", "window", "hysteresis", "minimum")
    return {field: sorted({getattr(scale, field) for scale in policies}) for field in fields}


def _ask(
    study: Study, values: Mapping[str, Sequence[int]], scaler: Scaler
) -> tuple[Trial, LossScale]:
    trial = study.ask()
    chosen = {field: trial.suggest_categorical(field, found) for field, found in values.items()}
    return trial, fitted(LossScale(**chosen), scaler)


def _tell(study: Study, trial: Trial, score: PolicyScore, limits: Limits) -> None:
    for name, excess in excesses(score, limits).items():
        trial.set_constraint(name, excess)
    study.tell(trial, score.useful_step_fraction)
