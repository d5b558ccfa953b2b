"""A second probe for setups near the leader, before the race takes the best of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from autotune.decide import probe_ratios
from autotune.decide.budget import Amount
from autotune.decide.score import backward_rate
from autotune.launch import Launch
from autotune.outcome import Probe
from autotune.setup import Setup
from autotune.sweep.bench import Bench
from autotune.sweep.costs import BASELINE_EVERY


def qualifying(probes: Sequence[Probe]) -> list[Probe]:
    """The probes that were taken for it: of the race, but of none of its blocks."""
    return [probe for probe in probes if probe.phase == "race" and probe.block is None]


def stopped_early(probes: Sequence[Probe]) -> list[Setup]:
    """Setups whose every probe was stopped for being behind the leader."""
    kinds: dict[Setup, set[str]] = {}
    for probe in probes:
        kinds.setdefault(probe.setup, set()).add(probe.outcome.kind)
    return [setup for setup, found in kinds.items() if found == {"pruned"}]


class Qualifying:
    """Probes each setup once more in a fresh launch, with baselines between."""

    def __init__(self, bench: Bench, setups: Sequence[Setup]) -> None:
        self._bench = bench
        self._setups = list(setups)
        random.Random(bench.plan.rules.seed).shuffle(self._setups)

    def run(self, allowed: Amount) -> bool:
        """Whether all were probed within ``allowed``, counted from the sweep's start."""
        while left := self._left():
            probes = len(left) + len(left) // BASELINE_EVERY + 2
            fits = self._bench.left(allowed).covers(self._bench.costs.block(probes))
            if self._bench.interrupted or not fits:
                return False
            with self._bench.launch("race") as launch:
                if launch is not None:
                    self._serve(launch, left)
        return True

    def _left(self) -> list[Setup]:
        taken = {probe.setup for probe in qualifying(self._bench.probes) if not probe.baseline}
        return [setup for setup in self._setups if setup not in taken]

    def _serve(self, launch: Launch, setups: Sequence[Setup]) -> None:
        for number, setup in enumerate(setups):
            if number % BASELINE_EVERY == 0 and not self._baseline(launch):
                return
            self._keep(launch, setup)
            if self._bench.interrupted or not launch.alive:
                return
        self._baseline(launch)

    def _baseline(self, launch: Launch) -> bool:
        probe = self._keep(launch, self._bench.plan.baseline)
        if probe.outcome.kind != "ok":
            self._bench.baseline_failed(probe.outcome)
            return False
        self._bench.baseline_measured()
        return not self._bench.interrupted

    def _keep(self, launch: Launch, setup: Setup) -> Probe:
        baseline = setup == self._bench.plan.baseline
        probe = self._bench.probe(launch, setup, phase="race", baseline=baseline)
        self._bench.keep(probe, probe_ratios(self._bench.probes, backward_rate).get(probe.number))
        return probe
