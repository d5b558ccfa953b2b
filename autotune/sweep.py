"""The loop of a sweep: launches, probes and baselines, until the space or the budget ends.

It emits events and knows no screen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from statistics import median
from typing import Literal

from autotune.backends import backend_of
from autotune.decide import probe_ratios
from autotune.errors import EnvironmentFailedError
from autotune.events import (
    Event,
    LaunchEnded,
    LaunchReady,
    LaunchStarting,
    ProbeFinished,
    ProbeStarted,
    SweepPlanned,
)
from autotune.launch import Launch, LaunchFailedError, LocalLauncher
from autotune.outcome import Outcome, Probe
from autotune.render import render
from autotune.request import Measure, ProbeRequest
from autotune.search import Proposal, Search, Store
from autotune.setup import Setup
from autotune.space import Space
from autotune.spec import Spec

BASELINE_EVERY = 4  # probes between two baselines of a launch
FAILURES_IN_A_ROW = 2  # launches without one baseline; then the environment is at fault
GROWTH_LIMIT = 2.0  # resident memory after clean-up over that after the first probe
GROWTH_FLOOR_BYTES = 2 * 2**30  # growth below it never ends a launch
WARMING = Measure(warm_up_steps=1, warm_up_cap=1, timed_steps=1, end_to_end_steps=1)

End = Literal["exhausted", "budget", "interrupted"]


@dataclass(slots=True)
class Spent:
    """What a run has cost so far, over all its sessions.

    Attributes:
        wall_seconds: Time in `Sweep.run`.
        launch_seconds: Part of it: from starting workers until they were warm.
        probe_seconds: Part of it: from request to answer of every probe.
        launches: Launches that became ready.
    """

    wall_seconds: float = 0.0
    launch_seconds: float = 0.0
    probe_seconds: float = 0.0
    launches: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a sweep needs to know before it starts.

    Attributes:
        spec: The sweep file.
        space: Knobs and restrictions.
        baseline: The setup that the user has today.
    """

    spec: Spec
    space: Space
    baseline: Setup


@contextmanager
def closing_launch(launch: Launch) -> Iterator[None]:
    """Lets the workers leave in order after the body, and ends them at once if it is broken off."""
    try:
        yield
    except BaseException:
        launch.kill()
        raise
    launch.stop()


class Sweep:
    """Runs the search phase of one plan."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        launcher: LocalLauncher,
        emit: Callable[[Event], None],
    ) -> None:
        self._plan = plan
        self._store = store
        self._launcher = launcher
        self._emit = emit
        self._valid = plan.space.valid()
        self._probes = store.probes()
        self.spent = Spent(**store.about.get("spent", {}))
        self._clock = time.monotonic() - self.spent.wall_seconds
        self._launches = 1 + max((probe.launch for probe in self._probes), default=-1)
        self._failures = 0
        self._interrupted = False
        self._search: Search | None = None

    def interrupt(self) -> None:
        """Stops after the running probe. Safe in a signal handler."""
        self._interrupted = True

    def run(self) -> End:
        """Probes until nothing is left, the budget ends or `interrupt` was called.

        Raises:
            EnvironmentFailedError: No launch can measure the baseline.
        """
        budget = self._plan.spec.budget
        self._emit(
            SweepPlanned(
                setups=len(self._valid),
                measured=len(self._measured() & self._valid.keys()),
                probes=budget.probes,
                minutes=budget.minutes,
            )
        )
        end = self._end()
        while end is None:
            launch = self._launch()
            if launch is None:
                continue
            with closing_launch(launch):
                end = self._serve(launch)
            self._save_spent()
            self._emit(LaunchEnded(launch=self._launches - 1, reason=end or "replaced"))
        return end

    def _save_spent(self) -> None:
        self.spent.wall_seconds = time.monotonic() - self._clock
        self._store.describe({"spent": asdict(self.spent)})

    def _end(self) -> End | None:
        """Why the sweep is over, if it is."""
        if self._interrupted:
            return "interrupted"
        if self._measured().issuperset(self._valid):
            return "exhausted"
        budget = self._plan.spec.budget
        wanted = 1 if self._probes and self._probes[-1].baseline else 2  # a baseline closes
        if budget.probes is not None and len(self._probes) + wanted > budget.probes:
            return "budget"
        seconds = wanted * self._one_probe()
        if budget.minutes is not None and self._seconds_left(budget.minutes) < seconds:
            return "budget"
        return None

    def _measured(self) -> set[Setup]:
        """Setups that have a probe, the baseline's own included."""
        return {probe.setup for probe in self._probes}

    def _seconds_left(self, minutes: float) -> float:
        return minutes * 60 - (time.monotonic() - self._clock)

    def _one_probe(self) -> float:
        """Seconds that a probe is likely to take; 0 before the first."""
        taken = [probe.wall_seconds for probe in self._probes]
        return median(taken) if taken else 0.0

    def _launch(self) -> Launch | None:
        """A fresh launch, warmed and with a first baseline; None when it failed."""
        number, self._launches = self._launches, self._launches + 1
        self._emit(LaunchStarting(launch=number, ranks=self._launcher.ranks))
        started = time.monotonic()
        try:
            launch = self._launcher.start(number)
        except LaunchFailedError as error:
            self._count_failure(str(error), error)
            self._emit(LaunchEnded(launch=number, reason=str(error)))
            return None
        warmed = self._ask(launch, self._plan.baseline, WARMING)
        self.spent.launch_seconds += time.monotonic() - started
        self.spent.launches += 1
        self._emit(LaunchReady(launch=number, seconds=time.monotonic() - started))
        if launch.alive and warmed.kind == "ok":
            warmed = self._take_baseline(launch)
        if warmed.kind == "ok":
            self._failures = 0
            return launch
        launch.stop()
        self._emit(LaunchEnded(launch=number, reason=warmed.reason or warmed.kind))
        self._count_failure(
            f"The baseline {self._plan.baseline.key} cannot be measured: {warmed.kind}. "
            f"{warmed.reason}\n{warmed.log}\nName a baseline that trains here, or correct "
            "the workload."
        )
        return None

    def _count_failure(self, message: str, cause: Exception | None = None) -> None:
        self._failures += 1
        if self._failures == FAILURES_IN_A_ROW:
            raise EnvironmentFailedError(message) from cause

    def _serve(self, launch: Launch) -> End | None:
        """Probes in one launch. Returns why the sweep is over, or None for a new launch."""
        if self._search is None:
            self._search = self._make_search()
        served = 0
        first_resident = self._probes[-1].outcome.resident_bytes
        while (end := self._end()) is None and launch.alive:
            proposal = self._search.propose()
            assert proposal is not None  # else every valid setup has a probe
            outcome = self._take(launch, proposal)
            served += 1
            if self._worn(served, first_resident, outcome):
                break
            if launch.alive and served % BASELINE_EVERY == 0:
                self._take_baseline(launch)
        if launch.alive and not self._probes[-1].baseline and end != "interrupted":
            self._take_baseline(launch)
        return end

    def _make_search(self) -> Search:
        """The search, exhaustive when the budget covers the space.

        It is made after the first baseline, which tells what a probe costs.
        """
        budget = self._plan.spec.budget
        affordable = float("inf")
        if budget.probes is not None:
            affordable = budget.probes
        if budget.minutes is not None:
            by_time = self._seconds_left(budget.minutes) / max(self._one_probe(), 1e-3)
            affordable = min(affordable, by_time + len(self._probes))
        share = BASELINE_EVERY / (BASELINE_EVERY + 1)
        return Search(
            self._store,
            self._plan.space,
            self._valid,
            self._plan.baseline,
            exhaustive=affordable * share >= len(self._valid),
        )

    def _worn(self, served: int, first_resident: int, outcome: Outcome) -> bool:
        """Whether the launch has served enough, or what it holds after clean-up has grown."""
        limit = max(first_resident * GROWTH_LIMIT, first_resident + GROWTH_FLOOR_BYTES)
        return served >= self._plan.spec.probes_per_launch or outcome.resident_bytes > limit

    def render(self, setup: Setup) -> str:
        """The configuration text of a setup."""
        backend = backend_of(setup)
        return render(backend.template, backend.variables(setup), self._plan.spec.templates)

    def _ask(self, launch: Launch, setup: Setup, measure: Measure) -> Outcome:
        request = ProbeRequest(
            setup=setup,
            rendered=self.render(setup),
            workload=self._plan.spec.workload,
            measure=measure,
        )
        return launch.probe(request, self._plan.spec.deadline_seconds)

    def _take_baseline(self, launch: Launch) -> Outcome:
        """Probes the baseline and keeps the record before anybody hears of it."""
        probe = self._probe(launch, self._plan.baseline, baseline=True)
        self._store.add_baseline(probe)
        self._emit(ProbeFinished(probe=probe, ratio=None))
        return probe.outcome

    def _take(self, launch: Launch, proposal: Proposal) -> Outcome:
        """Probes what the search proposed; as `_take_baseline`."""
        assert self._search is not None
        probe = self._probe(launch, proposal.setup, baseline=False)
        ratios = probe_ratios(self._probes, lambda item: item.backward_tokens_per_second)
        ratio = ratios.get(probe.number)
        self._search.tell(proposal, probe, ratio)
        self._emit(ProbeFinished(probe=probe, ratio=ratio))
        return probe.outcome

    def _probe(self, launch: Launch, setup: Setup, *, baseline: bool) -> Probe:
        number = 1 + max((probe.number for probe in self._probes), default=-1)
        self._emit(ProbeStarted(number=number, setup=setup, baseline=baseline))
        started = time.monotonic()
        outcome = self._ask(launch, setup, self._plan.spec.measure)
        wall = time.monotonic() - started
        probe = Probe(
            number=number,
            launch=self._launches - 1,
            baseline=baseline,
            setup=setup,
            rendered=self.render(setup),
            outcome=outcome,
            wall_seconds=wall,
            finished_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        self._probes.append(probe)
        self.spent.probe_seconds += wall
        self._save_spent()
        return probe
