"""One sweep through the code that decides, on a simulated machine; and what many of them show."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from autotune.decide import (
    Candidates,
    Rules,
    Screened,
    Standing,
    State,
    Verdict,
    absorb,
    candidates,
    next_block,
    noise_floor,
    observe,
    qualifiers,
    screen,
    standings,
    start_confirmation,
    start_race,
    verdict,
)
from autotune.decide.confirm import MOST_LAUNCHES
from autotune.launch.replay import ReplayLaunch, ReplayLauncher, Source
from autotune.outcome import Probe
from autotune.request import Measure, ProbeRequest
from autotune.setup import Setup
from tests.build import TINY
from tests.simulation.world import Scenario

BASELINE_EVERY = 4
PROBES_PER_LAUNCH = 48  # of the search, without the baselines
DEADLINE_SECONDS = 60.0
MEASURE = Measure()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What one simulated sweep came to.

    Attributes:
        screened: Who entered the race.
        race: The race at its end.
        chosen: Who was confirmed.
        verdict: The verdict.
        naive: The best of one probe each, in the same search.
        launches: Launches of all phases.
        probes: Probes of all phases.
    """

    screened: Screened
    race: State
    chosen: Candidates
    verdict: Verdict
    naive: Standing
    launches: int
    probes: int


@dataclass
class Simulation:
    """Keeps the records of one sweep over a source, as the sweep's bench does."""

    launcher: ReplayLauncher
    baseline: Setup
    launches: int = 0
    probes: list[Probe] = field(default_factory=list)

    def start(self) -> ReplayLaunch:
        """A fresh launch."""
        self.launches += 1
        return self.launcher.start(self.launches - 1)

    def probe(self, launch: ReplayLaunch, setup: Setup, *, control: bool = False) -> Probe:
        """One probe, recorded."""
        request = ProbeRequest(setup=setup, rendered="", workload=TINY, measure=MEASURE)
        started = self.launcher.clock()
        outcome = launch.probe(request, DEADLINE_SECONDS)
        probe = Probe(
            number=len(self.probes),
            launch=self.launches - 1,
            baseline=setup == self.baseline,
            setup=setup,
            rendered="",
            outcome=outcome,
            wall_seconds=self.launcher.clock() - started,
            finished_at="",
            control=control,
        )
        self.probes.append(probe)
        return probe

    def search(self, setups: Sequence[Setup]) -> list[Probe]:
        """One probe of each setup in this order, with a baseline before, between and after."""
        for first in range(0, len(setups), PROBES_PER_LAUNCH):
            launch = self.start()
            self.probe(launch, self.baseline)
            served = setups[first : first + PROBES_PER_LAUNCH]
            for group in range(0, len(served), BASELINE_EVERY):
                for setup in served[group : group + BASELINE_EVERY]:
                    self.probe(launch, setup)
                self.probe(launch, self.baseline)
        return list(self.probes)

    def blocks(self, state: State) -> State:
        """Runs a race or a confirmation to its end."""
        while (block := next_block(state)) is not None:
            launch = self.start()
            for entry in block.entries:
                found = self.probe(launch, entry.setup, control=entry.control)
                state = absorb(state, observe(found))
        return state


def sweep(source: Source, baseline: Setup, setups: Sequence[Setup], seed: int) -> Sweep:
    """Searches, races and confirms; no budget, nothing else than the rules ends a phase."""
    rules = Rules(seed=seed)
    running = Simulation(ReplayLauncher(source, seed=seed), baseline)
    order = [setup for setup in setups if setup != baseline]
    random.Random(f"order {seed}").shuffle(order)
    searched = running.search(order)
    ranked = standings(searched, baseline)
    again = list(qualifiers(ranked, baseline, noise_floor(searched)))
    random.Random(f"again {seed}").shuffle(again)
    tried = running.search(again)
    floor = noise_floor(tried)
    assert floor is not None
    screened = screen(standings(tried, baseline), baseline, floor)
    race = running.blocks(start_race(rules, baseline, screened.entrants))
    chosen = candidates(race, screened.log_ratios, floor)
    confirmation = running.blocks(
        start_confirmation(
            rules, baseline, chosen.setups, distance=chosen.distance, most=MOST_LAUNCHES
        )
    )
    return Sweep(
        screened=screened,
        race=race,
        chosen=chosen,
        verdict=verdict(confirmation),
        naive=ranked[0],
        launches=running.launches,
        probes=len(running.probes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One sweep against the truth; gains and regrets in percent of the baseline's speed.

    Attributes:
        name: Of the verdict.
        right: Whether the winner is the setup that is truly the fastest.
        covered: Whether the claimed interval holds the true ratio; None without a claim.
        inflation: Claimed minus true gain of the winner; None unless confirmed.
        regret: True speed of the fastest setup minus that of the winner.
        naive_claims: Whether the naive rule would claim a gain over the margin.
        naive_inflation: As ``inflation``, of the naive rule's winner.
        naive_regret: As ``regret``.
        launches: Of the whole sweep.
        probes: Of the whole sweep.
    """

    name: str
    right: bool
    covered: bool | None
    inflation: float | None
    regret: float
    naive_claims: bool
    naive_inflation: float
    naive_regret: float
    launches: int
    probes: int


def play(scenario: Scenario, seed: int) -> Score:
    """One sweep in one world of the scenario."""
    baseline, world = scenario.world(seed)
    done = sweep(world, baseline, tuple(world.gains), seed)
    return score(done, {setup: math.exp(gain) for setup, gain in world.gains.items()})


def score(done: Sweep, truth: dict[Setup, float]) -> Score:
    """Compares with the true ratios."""
    found, naive, best = done.verdict, done.naive, max(truth.values())
    claim = found.claim
    covered = inflation = None
    if claim is not None:
        low, high = claim.backward.interval
        covered = low <= truth[claim.setup] <= high
        if found.name == "confirmed":
            inflation = 100 * (claim.backward.ratio - truth[claim.setup])
    return Score(
        name=found.name,
        right=truth[found.winner] == best,
        covered=covered,
        inflation=inflation,
        regret=100 * (best - truth[found.winner]),
        naive_claims=naive.ratio > 1 + Rules().margin,
        naive_inflation=100 * (naive.ratio - truth[naive.setup]),
        naive_regret=100 * (best - truth[naive.setup]),
        launches=done.launches,
        probes=done.probes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Means over many sweeps of one scenario; see `Score`."""

    confirmed: float
    confirmed_right: float
    keep_baseline: float
    coverage: float
    inflation: float
    regret: float
    naive_claims: float
    naive_inflation: float
    naive_regret: float
    launches: float
    probes: float


def rates(scores: Sequence[Score]) -> Rates:
    """The means; nan where nothing was claimed or confirmed."""
    return Rates(
        confirmed=fmean(item.name == "confirmed" for item in scores),
        confirmed_right=fmean(item.name == "confirmed" and item.right for item in scores),
        keep_baseline=fmean(item.name == "keep-baseline" for item in scores),
        coverage=mean_known([item.covered for item in scores]),
        inflation=mean_known([item.inflation for item in scores]),
        regret=fmean(item.regret for item in scores),
        naive_claims=fmean(item.naive_claims for item in scores),
        naive_inflation=fmean(item.naive_inflation for item in scores),
        naive_regret=fmean(item.naive_regret for item in scores),
        launches=fmean(item.launches for item in scores),
        probes=fmean(item.probes for item in scores),
    )


def mean_known(values: Sequence[float | None]) -> float:
    """Mean of the values that are there."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else math.nan
