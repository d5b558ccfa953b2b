"""The search: every proposal of Optuna is probed, with baselines between them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median
from typing import Literal

from autotune.decide import noise_floor, probe_ratios
from autotune.decide.budget import SHARES, Amount, allowance
from autotune.decide.score import backward_rate, end_to_end_rate
from autotune.decide.screening import baseline_log_ratios, screening_limit
from autotune.events import ProbeFinished
from autotune.launch import Burst, Launch
from autotune.outcome import Outcome, Probe
from autotune.search import Proposal, Search
from autotune.setup import Setup
from autotune.sweep.bench import Bench
from autotune.sweep.costs import BASELINE_EVERY, planned

GROWTH_LIMIT = 2.0  # resident memory after clean-up over that after the first probe
GROWTH_FLOOR_BYTES = 2 * 2**30  # growth below it never ends a launch
LEAST_PAIRS = 3  # of baselines in one launch, before a probe is stopped by their noise
BURSTS = 4  # in the timed steps of a probe; after each it may be stopped
FIRST = "the first launch of this run"

SearchEnd = Literal["exhausted", "budget", "interrupted"]


class SearchPhase:
    """Probes until nothing is left, the search's share of the budget ends, or Ctrl-C."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._plan = bench.plan
        self.valid = bench.plan.space.valid()
        self._search: Search | None = None
        steps = bench.plan.spec.measure.timed_steps
        self._measure = replace(bench.plan.spec.measure, burst_steps=math.ceil(steps / BURSTS))

    def run(self) -> SearchEnd:
        """Runs the phase; says why it is over."""
        end = self.end()
        while end is None:
            with self._bench.launch("search") as launch:
                if launch is not None:
                    end = self._serve(launch)
        return end

    def end(self) -> SearchEnd | None:
        """Why the search is over, if it is."""
        if self._bench.interrupted:
            return "interrupted"
        if self.measured().issuperset(self.valid):
            return "exhausted"
        probes = self._bench.probes
        wanted = 1 if probes and probes[-1].baseline else 2  # a baseline closes
        cost = Amount(wanted * self._bench.costs.probe_seconds, wanted)
        return None if self._left().covers(cost) else "budget"

    def _left(self) -> Amount:
        """What the search may still spend."""
        allowed = self._allowance()
        if self._bench.cold:
            allowed = replace(allowed, seconds=self._share_seconds)
        return self._bench.left(allowed)

    @property
    def _share_seconds(self) -> float:
        return self._plan.budget.seconds * SHARES["search"]

    def _dear(self) -> bool:
        """Whether launches are so dear that the search has to leave more than its share."""
        return self._allowance().seconds < self._share_seconds

    def _allowance(self) -> Amount:
        surveyed = self._bench.spent.phases["numerics"].seconds
        costs = self._bench.costs
        return allowance("search", self._plan.budget, costs, surveyed_seconds=surveyed)

    def measured(self) -> set[Setup]:
        """Setups that have a probe, the baseline's own included."""
        return {probe.setup for probe in self._bench.probes}

    def _serve(self, launch: Launch) -> SearchEnd | None:
        """Probes in one launch. Returns why the search is over, or None for a new launch."""
        first = self._take_baseline(launch)
        if first.kind != "ok":
            self._bench.baseline_failed(first)
            return None
        self._bench.baseline_measured()
        if self._search is None:
            self._search = self._make_search()
        self._say_costs()
        served = 0
        while (end := self.end()) is None and launch.alive:
            outcome = self._take(launch, self._search)
            served += 1
            if self._worn(served, first.resident_bytes, outcome):
                break
            if launch.alive and served % BASELINE_EVERY == 0:
                self._take_baseline(launch)
                if self._bench.cold and self._dear():
                    break  # a second launch tells what launches really cost
        if launch.alive and not self._bench.probes[-1].baseline and end != "interrupted":
            self._take_baseline(launch)
        return end

    def _make_search(self) -> Search:
        """The search, exhaustive when its share of the budget covers the space.

        It is made after the first baseline, which tells what a probe costs.
        """
        left = self._left()
        taken = len(self._bench.probes)
        by_time = left.seconds / max(self._bench.costs.probe_seconds, 1e-3)
        affordable = taken + min(left.probes, by_time)
        share = BASELINE_EVERY / (BASELINE_EVERY + 1)
        return Search(
            self._bench.store,
            self._plan.space,
            self.valid,
            self._plan.baseline,
            exhaustive=affordable * share >= len(self.valid),
        )

    def _say_costs(self) -> None:
        """Keeps what the run is expected to cost, by its first launch, or the second if cold."""
        known = self._bench.store.about.get("planned", {})
        if "costs" not in known or (known["from"] == FIRST and not self._bench.cold):
            source = FIRST if self._bench.cold else "the first launches of this run"
            plan = planned(self._plan, self._bench.costs, source)
            self._bench.store.describe({"planned": plan})

    def _worn(self, served: int, first_resident: int, outcome: Outcome) -> bool:
        """Whether the launch has served enough, or what it holds after clean-up has grown."""
        limit = max(first_resident * GROWTH_LIMIT, first_resident + GROWTH_FLOOR_BYTES)
        return served >= self._plan.spec.probes_per_launch or outcome.resident_bytes > limit

    def _take_baseline(self, launch: Launch) -> Outcome:
        probe = self._bench.probe(launch, self._plan.baseline, baseline=True)
        self._bench.keep(probe, None)
        return probe.outcome

    def _take(self, launch: Launch, search: Search) -> Outcome:
        """Probes what the search proposes, and stops the probe when it is clearly behind."""
        proposal = search.propose()
        assert proposal is not None  # else every valid setup has a probe
        search.noise_floor = self._known_floor()
        judge = Judge(search, proposal, self._last_baseline())
        probe = self._bench.probe(launch, proposal.setup, measure=self._measure, judge=judge)
        ratio = probe_ratios(self._bench.probes, backward_rate).get(probe.number)
        search.tell(proposal, probe, ratio, may_lead=self._may_lead(probe))
        self._bench.emit(ProbeFinished(probe=probe, ratio=ratio))
        return probe.outcome

    def _known_floor(self) -> float | None:
        """The noise floor once enough pairs of baselines tell it, to stop probes by."""
        known = len(baseline_log_ratios(self._bench.probes)) >= LEAST_PAIRS
        return noise_floor(self._bench.probes) if known else None

    def _may_lead(self, probe: Probe) -> bool:
        """Whether others may be stopped for being behind: not when screening would drop it."""
        whole = probe_ratios(self._bench.probes, end_to_end_rate)
        limit = screening_limit(noise_floor(self._bench.probes))
        return math.log(whole.get(probe.number, 1.0)) >= -limit

    def _last_baseline(self) -> Probe:
        """The baseline probe before, which is of this launch."""
        return next(probe for probe in reversed(self._bench.probes) if probe.baseline)


class Judge:
    """Tells the search how a probe is getting on, burst by burst."""

    def __init__(self, search: Search, proposal: Proposal, baseline: Probe) -> None:
        assert baseline.outcome.measurement is not None
        self._search = search
        self._proposal = proposal
        self._baseline_seconds = median(baseline.outcome.measurement.backward_seconds)

    def __call__(self, burst: Burst) -> str | None:
        """The reason to stop, or None; every setup trains the same batches as the baseline."""
        ratio = self._baseline_seconds / median(burst.backward_seconds)
        return self._search.reason_to_stop(self._proposal, burst.index, ratio)
