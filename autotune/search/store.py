"""Optuna's storage as the only database: every probe is a trial with its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState
from pydantic import TypeAdapter

from autotune.errors import UsageError
from autotune.numerics.findings import (
    Communication,
    Examined,
    Finding,
    Missing,
    ScaleChoice,
    Trained,
    WireErrors,
)
from autotune.outcome import Probe
from autotune.readings import ScaleTrace

FILE_NAME = "study.db"
SEARCH = "search"
BASELINE = "baseline"
RACE = "race"
CONFIRM = "confirm"
NUMERICS = "numerics"
LOSS_SCALE = "loss scale"  # of a study's name, before what it is about
STUDIES = (SEARCH, BASELINE, RACE, CONFIRM, NUMERICS)
PROBE = TypeAdapter(Probe)
FINDINGS: Mapping[str, TypeAdapter[Finding]] = {
    kind.__name__: TypeAdapter(kind)
    for kind in (Communication, WireErrors, ScaleTrace, ScaleChoice, Examined, Trained, Missing)
}

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Store:
    """The studies of one run.

    The study ``search`` holds what Optuna proposed; ``baseline`` holds the search's repeated
    baseline probes, which would otherwise be points of the search space that the sampler
    counts; ``race`` and ``confirm`` hold the probes of those phases; ``numerics`` holds what was
    found about numerics and communication, one named finding a trial.
    """

    def __init__(self, folder: Path | None, *, create: bool) -> None:
        """Opens the run in ``folder``; None keeps one in memory, for a replay.

        Raises:
            UsageError: There is no run to open, or there is one already.
        """
        self.folder = folder
        self.storage = self._open(folder, create=create)
        self._studies = {name: self._study(name) for name in STUDIES}

    @classmethod
    def _open(cls, folder: Path | None, *, create: bool) -> optuna.storages.BaseStorage:
        if folder is None:
            return optuna.storages.InMemoryStorage()
        path = folder / FILE_NAME
        if create and cls.exists(folder):
            raise UsageError(
                f"{folder} already holds a run. Continue it with --resume, or give the sweep "
                "another name."
            )
        if not create and not cls.exists(folder):
            raise UsageError(
                f"{folder} holds no run (no {FILE_NAME}). Give the folder that autotune sweep "
                "wrote, such as runs/quickstart."
            )
        folder.mkdir(parents=True, exist_ok=True)
        return optuna.storages.RDBStorage(f"sqlite:///{path}")

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
        return dict(self._studies[SEARCH].user_attrs)

    def describe(self, about: Mapping[str, Any]) -> None:
        """Keeps ``about`` (JSON types) with the run, key by key."""
        for key, value in about.items():
            self._studies[SEARCH].set_user_attr(key, value)

    def probes(self) -> list[Probe]:
        """Every finished probe, in the order in which they were taken."""
        trials = [trial for study in self._studies.values() for trial in _trials(study)]
        records = [trial.user_attrs["probe"] for trial in trials if "probe" in trial.user_attrs]
        return sorted(map(PROBE.validate_python, records), key=lambda probe: probe.number)

    def add(self, probe: Probe) -> None:
        """Keeps a probe that no search proposed: a baseline of the search, or one of a block.

        Its trial is told the backward throughput, tokens per second.
        """
        study = self._studies[BASELINE if probe.phase == "search" else probe.phase]
        trial = study.ask()
        keep(trial, probe)
        measurement = probe.outcome.measurement
        if probe.outcome.kind == "ok" and measurement is not None:
            study.tell(trial, measurement.backward_tokens_per_second)
        else:
            study.tell(trial, state=TrialState.PRUNED)

    def findings(self) -> dict[str, Finding]:
        """Everything found so far, by name, in the order in which it was first found."""
        records = (trial.user_attrs.get("finding") for trial in _trials(self._studies[NUMERICS]))
        return {
            record["name"]: FINDINGS[record["kind"]].validate_python(record["value"])
            for record in records
            if record is not None
        }

    def find(self, name: str, finding: Finding) -> None:
        """Keeps a finding; a later one of the same name replaces it."""
        study = self._studies[NUMERICS]
        trial = study.ask()
        record = {"name": name, "kind": type(finding).__name__, "value": asdict(finding)}
        trial.set_user_attr("finding", record)
        study.tell(trial, state=TrialState.PRUNED)

    def search_study(
        self, sampler: optuna.samplers.BaseSampler, pruner: optuna.pruners.BasePruner
    ) -> optuna.Study:
        """The search's study, with a sampler and a pruner."""
        return optuna.load_study(
            study_name=SEARCH, storage=self.storage, sampler=sampler, pruner=pruner
        )

    def scale_study(self, name: str, sampler: optuna.samplers.BaseSampler) -> optuna.Study:
        """A study of loss scales, which holds no probes."""
        return optuna.create_study(
            storage=self.storage,
            study_name=f"{LOSS_SCALE} {name}",
            direction="maximize",
            sampler=sampler,
            load_if_exists=True,
        )


def _trials(study: optuna.Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False)


def keep(trial: Trial, probe: Probe) -> None:
    """Writes the record before the trial is told, so that no finished probe can be lost."""
    trial.set_user_attr("probe", asdict(probe))
