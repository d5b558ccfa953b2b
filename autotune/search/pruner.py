"""Stops a probe early when it is so far behind that it could not enter the race."""

from __future__ import annotations

import math

from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.decide.screening import screening_limit

LEAST_REPORTS = 2  # the warm-up's times alone decide nothing
# User attributes of a trial.
MAY_LEAD = "may_lead"
DUPLICATE = "duplicate"


class ClearlyBehind(BasePruner):
    """Stops a trial whose best report is behind the leader by more than screening allows.

    Values are ratios to the neighbouring baseline, so the leader is at least the baseline's 1.

    Attributes:
        noise_floor: Standard deviation of the log ratio of two probes of one setup. While it is
            None nothing is stopped: the difference might be noise.
    """

    def __init__(self) -> None:
        self.noise_floor: float | None = None

    @property
    def limit(self) -> float | None:
        """How far behind the leader a setup may be, log ratio; None before it is known."""
        return None if self.noise_floor is None else screening_limit(self.noise_floor)

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether even the best report is clearly behind."""
        limit, reports = self.limit, trial.intermediate_values
        if limit is None or len(reports) < LEAST_REPORTS:
            return False
        return leader(study) > max(reports.values()) * math.exp(limit)


def leader(study: Study) -> float:
    """Best ratio of the finished trials that may lead; at least the baseline's own."""
    able = [trial.value for trial in study.get_trials(deepcopy=False) if _may_lead(trial)]
    return max((1.0, *(value for value in able if value is not None)))


def _may_lead(trial: FrozenTrial) -> bool:
    return (
        trial.state == TrialState.COMPLETE
        and trial.user_attrs.get(MAY_LEAD, True)
        and not trial.user_attrs.get(DUPLICATE, False)
    )
