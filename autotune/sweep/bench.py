"""Starts launches, asks for probes and keeps their records, for every phase alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from statistics import median

from autotune.decide.budget import Amount, Costs
from autotune.errors import EnvironmentFailedError
from autotune.events import (
    Event,
    Judged,
    LaunchEnded,
    LaunchReady,
    LaunchStarting,
    ProbeFinished,
    ProbeStarted,
    ReadingStarted,
)
from autotune.launch import Judge, Launch, Launcher, LaunchFailedError
from autotune.outcome import Outcome, Phase, Probe
from autotune.readings import Reading
from autotune.request import Ask, Measure, ProbeRequest, ReadingRequest
from autotune.search import Store
from autotune.setup import Setup
from autotune.sweep.batches import same_batch
from autotune.sweep.plan import PhaseSpent, Plan, Spent
from autotune.sweep.rendering import render_setup
from autotune.sweep.surveyed import useful_step_fraction

FAILURES_IN_A_ROW = 2  # launches without one baseline; then the environment is at fault
WARMING = Measure(warm_up_steps=1, warm_up_cap=1, timed_steps=1, end_to_end_steps=1)


def typical_start(starts: Sequence[float]) -> float:
    """Seconds that a launch takes to be warm, by those so far; 0 before the first.

    A first launch also pays for cold file caches and for what DeepSpeed compiles, so it counts
    only while there is no other.
    """
    return median(starts[1:] or starts) if starts else 0.0


class Bench:
    """The launches and probes of one run.

    Attributes:
        plan: What the run is about.
        store: Where its records are kept.
        probes: Every probe so far, in order.
        spent: What they cost.
        interrupted: Set from outside to stop after the running probe.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        launcher: Launcher,
        emit: Callable[[Event], None],
    ) -> None:
        self.plan = plan
        self.store = store
        self.emit = emit
        self.probes = store.probes()
        self.spent = Spent.from_dict(store.about.get("spent", {}))
        self.interrupted = False
        self._launcher = launcher
        self._mark = launcher.clock()
        self._starts: list[float] = store.about.get("starts", [])
        self._launches = 1 + max((probe.launch for probe in self.probes), default=-1)
        self._failures = 0

    def save(self, phase: Phase) -> None:
        """Charges the time since the last call to ``phase``."""
        now = self._launcher.clock()
        self.spent.add(phase, PhaseSpent(seconds=now - self._mark))
        self._mark = now
        self.store.describe({"spent": self.spent.to_dict()})

    def left(self, allowed: Amount | None = None) -> Amount:
        """What is left of ``allowed``, counted from the sweep's start; default the budget."""
        running = Amount(self._launcher.clock() - self._mark, 0)
        return (allowed or self.plan.budget) - self.spent.amount - running

    @property
    def costs(self) -> Costs:
        """Of a launch and of a whole probe, by those so far; 0 before the first."""
        taken = [probe.wall_seconds for probe in self.probes if probe.outcome.kind == "ok"]
        return Costs(
            launch_seconds=typical_start(self._starts),
            probe_seconds=median(taken) if taken else 0.0,
        )

    @property
    def cold(self) -> bool:
        """Whether only one launch has shown what a launch costs."""
        return len(self._starts) == 1

    @contextmanager
    def launch(self, phase: Phase, *, alone: bool = False) -> Iterator[Launch | None]:
        """A fresh, warmed launch for the body; None when it failed.

        The workers leave in order after the body, and at once if it is broken off.

        Args:
            phase: Which pays for it.
            alone: Whether it has one rank only.

        Raises:
            EnvironmentFailedError: Launches failed again and again.
        """
        number, self._launches = self._launches, self._launches + 1
        launch = self._start(number, phase, alone)
        if launch is None:
            yield None
            return
        try:
            yield launch
        except BaseException:
            launch.kill()
            raise
        finally:
            self.save(phase)
        reason = "done" if launch.alive else "lost"
        launch.stop()
        self.save(phase)
        self.emit(LaunchEnded(launch=number, reason=reason))

    def _start(self, number: int, phase: Phase, alone: bool) -> Launch | None:
        self.emit(LaunchStarting(launch=number, ranks=1 if alone else self._launcher.ranks))
        started = self._launcher.clock()
        try:
            launch = self._launcher.start(number, alone=alone)
        except LaunchFailedError as error:
            if not alone:
                self._count_failure(str(error), error)
            self.emit(LaunchEnded(launch=number, reason=str(error)))
            return None
        warmed = self._warm(launch)
        seconds = self._launcher.clock() - started
        self._charge_start(phase, seconds)
        if not alone:  # one rank starts faster than all
            self._starts.append(seconds)
            self.store.describe({"starts": self._starts})
        self.emit(LaunchReady(launch=number, seconds=seconds))
        if launch.alive and warmed.kind == "ok":
            return launch
        launch.stop()
        self.emit(LaunchEnded(launch=number, reason=warmed.reason or warmed.kind))
        if not alone:  # what all ranks can hold together may be too much for one
            self.baseline_failed(warmed)
        return None

    def _warm(self, launch: Launch) -> Outcome:
        """One throw-away probe; of a script the first run alone finds cold caches."""
        if self._launcher.fresh and self._starts:
            return Outcome(kind="ok")
        return self._ask(launch, self.plan.baseline, WARMING)

    def _charge_start(self, phase: Phase, seconds: float) -> None:
        """The first start finds cold caches: whoever asks for it, the search would have paid."""
        payer: Phase = phase if self.spent.total.launches else "search"
        self.spent.add(payer, PhaseSpent(launches=1, launch_seconds=seconds))
        self.save(payer)

    def baseline_failed(self, outcome: Outcome) -> None:
        """Counts a launch whose baseline gave no number.

        Raises:
            EnvironmentFailedError: It happened twice in a row.
        """
        self._count_failure(
            f"The baseline {self.plan.baseline.key} cannot be measured: {outcome.kind}. "
            f"{outcome.reason}\n{outcome.log}\nName a baseline that trains here, or correct "
            "the workload."
        )

    def baseline_measured(self) -> None:
        """Ends a row of failures."""
        self._failures = 0

    def _count_failure(self, message: str, cause: Exception | None = None) -> None:
        self._failures += 1
        if self._failures == FAILURES_IN_A_ROW:
            raise EnvironmentFailedError(message) from cause

    def render(self, setup: Setup) -> str:
        """What configures a setup: one text, or the files of a script as one."""
        return render_setup(self.plan, setup)

    def _ask(
        self, launch: Launch, setup: Setup, measure: Measure, judge: Judge | None = None
    ) -> Outcome:
        request = ProbeRequest(
            setup=setup,
            rendered=self.render(setup),
            workload=self.plan.spec.workload,
            measure=measure,
        )
        return launch.probe(request, self.plan.spec.deadline_seconds, judge)

    def measure(self, launch: Launch, setup: Setup) -> Outcome:
        """An outcome that belongs to no phase's records."""
        outcome = self._ask(launch, setup, self.plan.spec.measure)
        self.save("numerics")
        return outcome

    def read(self, launch: Launch, ask: Ask, setup: Setup, steps: int) -> Reading | Outcome:
        """Takes a reading; an outcome that says why where there is none."""
        self.emit(ReadingStarted(ask=ask, setup=setup))
        spec = self.plan.spec
        request = ReadingRequest(
            ask=ask,
            setup=setup,
            rendered=self.render(setup),
            workload=spec.workload,
            steps=steps,
            learning_rate=self.plan.learning_rate,
        )
        found = launch.read(request, spec.deadline_seconds)
        self.save("numerics")
        return found

    def probe(
        self,
        launch: Launch,
        setup: Setup,
        *,
        phase: Phase = "search",
        baseline: bool = False,
        control: bool = False,
        block: int | None = None,
        round: int = 0,
        measure: Measure | None = None,
        judge: Judge | None = None,
    ) -> Probe:
        """Probes one setup; the caller keeps the record in the store before telling anybody."""
        number = 1 + max((probe.number for probe in self.probes), default=-1)
        self.emit(ProbeStarted(number=number, setup=setup, baseline=baseline))
        started = self._launcher.clock()
        outcome = self._ask(launch, setup, measure or self.plan.spec.measure, judge)
        wall = self._launcher.clock() - started
        outcome = self._with_useful_steps(setup, outcome)
        if self.plan.script is not None:
            outcome = same_batch(self.plan.baseline, self.probes, outcome)
        self._say(outcome.notes)
        probe = Probe(
            number=number,
            launch=self._launches - 1,
            baseline=baseline,
            setup=setup,
            rendered=self.render(setup),
            outcome=outcome,
            wall_seconds=wall,
            finished_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            phase=phase,
            block=block,
            round=round,
            control=control,
            others_busy=launch.others_busy,
        )
        self.probes.append(probe)
        self.spent.add(phase, PhaseSpent(probes=1, probe_seconds=wall))
        self.save(phase)
        return probe

    def _say(self, notes: Sequence[str]) -> None:
        """Says, and keeps, what the run has not told yet."""
        known = self.store.about.get("notes", [])
        new = [text for text in notes if text not in known]
        if new:
            self.store.describe({"notes": [*known, *new]})
            for text in new:
                self.emit(Judged(text=text))

    def _with_useful_steps(self, setup: Setup, outcome: Outcome) -> Outcome:
        """The outcome with the share of steps that its loss scale lets count in the real run."""
        if outcome.measurement is None or setup.loss_scale is None:
            return outcome
        useful = useful_step_fraction(setup, self.store.findings(), self.plan.horizon)
        measured = replace(outcome.measurement, useful_step_fraction=useful)
        if outcome.kind == "ok" and useful == 0:
            reason = f"its loss scale lets none of {self.plan.horizon:,} steps apply an update"
            return replace(outcome, kind="unsafe", reason=reason, measurement=measured)
        return replace(outcome, measurement=measured)

    def keep(self, probe: Probe, ratio: float | None) -> None:
        """Keeps a probe that no search proposed, then announces it."""
        self.store.add(probe)
        self.emit(ProbeFinished(probe=probe, ratio=ratio))
