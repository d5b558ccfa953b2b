"""Proposes setups: exhaustively when the budget covers the space, else by TPE."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, BruteForceSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.outcome import Probe
from autotune.search.store import Store, keep
from autotune.setup import Setup
from autotune.space import Space

DUPLICATES_IN_A_ROW = 20  # then TPE has converged, and an unmeasured setup is drawn instead
MOTIVATED = 8
MAY_WIN, ALLOWED, REFUSED = "may_win", 0.0, 1.0  # Optuna's constraint: above zero is infeasible


@dataclass(frozen=True, slots=True)
class Proposal:
    """A setup to probe, and the trial that waits for its score."""

    trial: Trial
    setup: Setup


class Exhaustive(BruteForceSampler):
    """Brute force under ask and tell, where there is no loop that it could stop."""

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Leaves the end of the search to `Search`, which knows the valid setups."""


class Search:
    """Optuna's ask and tell over one space. A setup already measured is never proposed."""

    def __init__(
        self,
        store: Store,
        space: Space,
        valid: Mapping[Setup, Mapping[str, Any]],
        baseline: Setup,
        *,
        exhaustive: bool,
        seed: int = 0,
    ) -> None:
        """Continues the search in ``store``, whatever state a killed controller left it in.

        Args:
            store: The run.
            space: What to walk.
            valid: Its valid setups with the choices that lead to each.
            baseline: Measured apart from the search, with a ratio of 1 by definition.
            exhaustive: Whether the budget covers the space.
            seed: Of the sampler.
        """
        self._space = space
        self._valid = valid
        self._study = store.search_study(make_sampler(exhaustive=exhaustive, seed=seed))
        self._random = random.Random(seed)
        self._ratios: dict[Setup, float | None] = {baseline: 1.0}
        self._left: list[Trial] = []
        self._recover()
        if not exhaustive:
            for setup in motivated(valid, baseline):
                self._study.enqueue_trial(dict(valid[setup]), skip_if_exists=True)

    def _recover(self) -> None:
        """Reads what is measured; takes up the trials that a dead controller left running."""
        for frozen in self._study.get_trials(deepcopy=False):
            record = frozen.user_attrs.get("probe")
            if record is not None:
                self._ratios[Setup.from_dict(record["setup"])] = frozen.user_attrs.get("ratio")
            if frozen.state != TrialState.RUNNING:
                continue
            if record is not None:
                self._close(frozen.number, frozen.user_attrs.get("ratio"))
            else:
                self._left.append(Trial(self._study, frozen._trial_id))

    def _close(self, trial: Trial | int, ratio: float | None) -> None:
        if ratio is None:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, ratio)

    @property
    def unmeasured(self) -> int:
        """Valid setups without a probe."""
        return sum(setup not in self._ratios for setup in self._valid)

    def propose(self) -> Proposal | None:
        """The next setup to probe; None when all are measured."""
        duplicates = 0
        while self.unmeasured:
            if duplicates == DUPLICATES_IN_A_ROW:
                self._study.enqueue_trial(dict(self._valid[self._draw()]))
                duplicates = 0
            trial = self._left.pop() if self._left else self._study.ask()
            setup = self._space.walk(trial.suggest_categorical)
            refusal = self._space.refusal(setup)
            if refusal is not None:
                trial.set_user_attr("restriction", refusal.name)
                trial.set_constraint(MAY_WIN, REFUSED)
                self._close(trial, None)
            elif setup in self._ratios:
                ratio = self._ratios[setup]
                trial.set_user_attr("duplicate", True)
                trial.set_constraint(MAY_WIN, REFUSED if ratio is None else ALLOWED)
                self._close(trial, ratio)
            else:
                return Proposal(trial, setup)
            duplicates += 1
        return None

    def _draw(self) -> Setup:
        return self._random.choice([item for item in self._valid if item not in self._ratios])

    def tell(self, proposal: Proposal, probe: Probe, ratio: float | None) -> None:
        """Keeps the probe and its ratio; None marks a setup that failed."""
        keep(proposal.trial, probe)
        proposal.trial.set_user_attr("ratio", ratio)
        proposal.trial.set_constraint(MAY_WIN, REFUSED if ratio is None else ALLOWED)
        self._ratios[probe.setup] = ratio
        self._close(proposal.trial, ratio)


def make_sampler(*, exhaustive: bool, seed: int) -> BaseSampler:
    """Brute force in random order, or TPE that models conditional knobs and refusals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        if exhaustive:
            return Exhaustive(seed=seed)
        return TPESampler(multivariate=True, group=True, seed=seed)


def motivated(valid: Iterable[Setup], baseline: Setup) -> list[Setup]:
    """Setups worth an early look: bf16 compute on the baseline's batches, either wire.

    Half the bytes through memory and tensor cores at full rate are the largest known gains,
    and bf16 needs no loss scale. One setup a backend, stage and wire, nearest to the baseline.
    """
    candidates = [
        setup
        for setup in valid
        if setup.precision == "bf16"
        and setup.micro_batch == baseline.micro_batch
        and setup.activation_checkpointing == baseline.activation_checkpointing
    ]
    candidates.sort(
        key=lambda setup: (
            setup.backend != baseline.backend,
            setup.zero_stage != baseline.zero_stage,
            setup.bucket_bytes != baseline.bucket_bytes,
        )
    )
    first: dict[tuple[str, int, str], Setup] = {}
    for setup in candidates:
        first.setdefault((setup.backend, setup.zero_stage, setup.grad_comm_dtype), setup)
    return list(first.values())[:MOTIVATED]
