"""Optuna's storage as the only database: every probe is a trial with its record."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import Trial, TrialState
from pydantic import TypeAdapter

from autotune.errors import UsageError
from autotune.outcome import Probe

FILE_NAME = "study.db"
SEARCH = "search"
BASELINE = "baseline"
PROBE = TypeAdapter(Probe)

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Store:
    """The studies of one run.

    The study ``search`` holds what Optuna proposed; ``baseline`` holds the repeated baseline
    probes, which would otherwise be points of the search space that the sampler counts.
    """

    def __init__(self, folder: Path, *, create: bool) -> None:
        """Opens the run in ``folder``.

        Raises:
            UsageError: There is no run to open, or there is one already.
        """
        path = folder / FILE_NAME
        if create and self.exists(folder):
            raise UsageError(
                f"{folder} already holds a run. Continue it with --resume, or give the sweep "
                "another name."
            )
        if not create and not self.exists(folder):
            raise UsageError(
                f"{folder} holds no run (no {FILE_NAME}). Give the folder that autotune sweep "
                "wrote, such as runs/quickstart."
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
        self._baseline = self._study(BASELINE)
        self._search = self._study(SEARCH)

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether ``folder`` holds a run."""
        return (folder / FILE_NAME).exists()

    def _study(self, name: str) -> optuna.Study:
        return optuna.create_study(
            storage=self.storage, study_name=name, direction="maximize", load_if_exists=True
        )

    @property
    def about(self) -> dict[str, Any]:
        """What the run is about, written by `describe`; empty for a new one."""
        return dict(self._search.user_attrs)

    def describe(self, about: dict[str, Any]) -> None:
        """Keeps ``about`` (JSON types) with the run, key by key."""
        for key, value in about.items():
            self._search.set_user_attr(key, value)

    def probes(self) -> list[Probe]:
        """Every finished probe, in the order in which they were taken."""
        trials = self._search.get_trials(deepcopy=False) + self._baseline.get_trials(deepcopy=False)
        records = [trial.user_attrs["probe"] for trial in trials if "probe" in trial.user_attrs]
        return sorted(map(PROBE.validate_python, records), key=lambda probe: probe.number)

    def add_baseline(self, probe: Probe) -> None:
        """Keeps a baseline probe."""
        trial = self._baseline.ask()
        keep(trial, probe)
        measurement = probe.outcome.measurement
        if probe.outcome.kind == "ok" and measurement is not None:
            self._baseline.tell(trial, measurement.backward_tokens_per_second)
        else:
            self._baseline.tell(trial, state=TrialState.PRUNED)

    def search_study(self, sampler: optuna.samplers.BaseSampler) -> optuna.Study:
        """The search's study, with a sampler."""
        return optuna.load_study(study_name=SEARCH, storage=self.storage, sampler=sampler)


def keep(trial: Trial, probe: Probe) -> None:
    """Writes the record before the trial is told, so that no finished probe can be lost."""
    trial.set_user_attr("probe", asdict(probe))
