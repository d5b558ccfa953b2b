"""Proposes setups: exhaustively when the budget covers the space, else by TPE."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, BruteForceSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.outcome import OutcomeKind, Probe
from autotune.search.pruner import DUPLICATE, MAY_LEAD, ClearlyBehind, leader
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
        self._pruner = ClearlyBehind()
        self._study = store.search_study(
            make_sampler(exhaustive=exhaustive, seed=seed), self._pruner
        )
        self._random = random.Random(seed)
        self._ratios: dict[Setup, float | None] = {baseline: 1.0}
        self._pruned: dict[Setup, Mapping[int, float]] = {}
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
                setup = Setup.from_dict(record["setup"])
                self._note(setup, record["outcome"]["kind"], frozen)
            if frozen.state != TrialState.RUNNING:
                continue
            if record is not None:
                self._close(Trial(self._study, frozen._trial_id), setup)
            else:
                self._take_up(frozen)

    def _note(self, setup: Setup, kind: OutcomeKind, frozen: FrozenTrial) -> None:
        self._ratios[setup] = frozen.user_attrs.get("ratio")
        if kind == "pruned":
            self._pruned[setup] = frozen.intermediate_values

    def _take_up(self, frozen: FrozenTrial) -> None:
        """Continues a trial whose probe was lost."""
        if not frozen.intermediate_values:
            self._left.append(Trial(self._study, frozen._trial_id))
            return
        # What is reported cannot be reported anew, so the next probe needs a trial of its own.
        self._study.enqueue_trial(frozen.params, skip_if_exists=True)
        self._study.tell(frozen.number, state=TrialState.FAIL)

    def _close(self, trial: Trial, setup: Setup) -> None:
        """Tells a trial what its setup came to; a pruned one may win no more, but is valid."""
        ratio = self._ratios[setup]
        failed = ratio is None and setup not in self._pruned
        if MAY_WIN not in self._frozen(trial).constraints:
            trial.set_constraint(MAY_WIN, REFUSED if failed else ALLOWED)
        if ratio is None:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, ratio)

    def _frozen(self, trial: Trial) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[trial.number]

    @property
    def noise_floor(self) -> float | None:
        """Standard deviation of the log ratio of two probes of one setup; None when unknown."""
        return self._pruner.noise_floor

    @noise_floor.setter
    def noise_floor(self, value: float | None) -> None:
        self._pruner.noise_floor = value

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
                self._study.tell(trial, state=TrialState.PRUNED)
            elif setup in self._ratios:
                self._repeat(trial, setup)
            else:
                return Proposal(trial, setup)
            duplicates += 1
        return None

    def _draw(self) -> Setup:
        return self._random.choice([item for item in self._valid if item not in self._ratios])

    def _repeat(self, trial: Trial, setup: Setup) -> None:
        """Tells a trial what the first one of its setup was told."""
        trial.set_user_attr(DUPLICATE, True)
        for step, value in self._pruned.get(setup, {}).items():
            trial.report(value, step)
        self._close(trial, setup)

    def reason_to_stop(self, proposal: Proposal, index: int, ratio: float) -> str | None:
        """Why the running probe should stop early, or None to go on.

        Args:
            proposal: What is being probed.
            index: Of the burst of steps; 0 is the warm-up.
            ratio: Backward throughput in that burst over the neighbouring baseline's.
        """
        proposal.trial.report(ratio, index)
        if not proposal.trial.should_prune():
            return None
        own = max(self._frozen(proposal.trial).intermediate_values.values())
        best, limit = leader(self._study), self._pruner.limit
        assert limit is not None  # else nothing is stopped
        return (
            f"{best / own:.2f}x slower than the leader after burst {index} of timed steps "
            f"({own:.2f}x the baseline against {best:.2f}x; the limit is {math.exp(limit):.2f}x); "
            "stopped early."
        )

    def tell(
        self, proposal: Proposal, probe: Probe, ratio: float | None, *, may_lead: bool = True
    ) -> None:
        """Keeps the probe and its ratio.

        Args:
            proposal: What was probed.
            probe: What it found.
            ratio: Its score; None when it failed or was stopped early.
            may_lead: Whether others may be stopped for being behind it. False for a setup that
                is too slow end-to-end to enter the race.
        """
        keep(proposal.trial, probe)
        proposal.trial.set_user_attr(MAY_LEAD, may_lead)
        proposal.trial.set_user_attr("ratio", ratio)
        self._note(probe.setup, probe.outcome.kind, self._frozen(proposal.trial))
        self._close(proposal.trial, probe.setup)


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
