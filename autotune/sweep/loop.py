"""The loop of a sweep: search, race, confirm. It emits events and knows no screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from autotune.decide import (
    Candidates,
    Out,
    Screened,
    Standing,
    State,
    candidates,
    next_block,
    noise_floor,
    planned_confirmation,
    qualifiers,
    screen,
    standings,
    start_race,
)
from autotune.decide.budget import Amount, allowance, blocks_in
from autotune.decide.confirm import MOST_LAUNCHES
from autotune.decide.race import LEAST_LAUNCHES
from autotune.errors import UsageError
from autotune.events import BudgetCut, Event, Judged, PhaseStarted, SetupLeft, SweepPlanned
from autotune.launch import Launcher
from autotune.search import Store
from autotune.setup import Setup
from autotune.sweep.bench import Bench
from autotune.sweep.blocks import Blocks
from autotune.sweep.examine import Examination, refused_by, still_sound
from autotune.sweep.plan import Plan
from autotune.sweep.qualify import Qualifying, stopped_early
from autotune.sweep.search_phase import SearchPhase
from autotune.sweep.survey import Survey
from autotune.sweep.surveyed import refused_wire, risky, surveyed
from autotune.sweep.trained import make_examination

NOISE_UNKNOWN = 0.02  # log ratio, where no baseline was probed twice in a launch
End = Literal["decided", "interrupted"]


class Sweep:
    """Runs one plan, or goes on where an earlier session left it.

    Decisions between the phases (who enters the race, who is confirmed) are written into the
    store when they are taken, so a later session goes on with the same ones.
    """

    def __init__(
        self, plan: Plan, store: Store, launcher: Launcher, emit: Callable[[Event], None]
    ) -> None:
        self._plan = plan
        self._store = store
        self._emit = emit
        self._bench = Bench(plan, store, launcher, emit)

    def interrupt(self) -> None:
        """Stops after the running probe. Safe in a signal handler."""
        self._bench.interrupted = True

    def run(self) -> End:
        """Searches, races and confirms until a verdict can be given.

        Raises:
            EnvironmentFailedError: No launch can measure the baseline.
        """
        self._survey()
        if "race" not in self._store.about:
            self._search()
        race = self._race() if self._found_something() else None
        if race is not None and not self._bench.interrupted:
            self._confirm(race)
        return self._end()

    def _found_something(self) -> bool:
        """Whether there is anything to decide: the search was not cut before its first setup."""
        if "race" in self._store.about:
            return not self._bench.interrupted
        others = self._plan.space.valid().keys() - {self._plan.baseline}
        tried = any(probe.setup in others for probe in self._bench.probes)
        return not self._bench.interrupted and (tried or not others)

    def confirm_again(self, setups: Sequence[Setup], launches: int | None) -> End:
        """A further confirmation, on fresh launches; nothing from before enters it.

        Args:
            setups: The candidates.
            launches: Complete blocks to take at most; by default `MOST_LAUNCHES`.
        """
        if not make_examination(self._bench).run(setups, self._plan.budget):
            if not self._bench.interrupted:
                self._cut("confirm: skipped, the budget ended before every candidate was examined")
            return self._end()
        sound = self._passing(setups)
        plans = self._store.about.get("confirmations", [])
        plan = {
            "setups": [setup.to_dict() for setup in sound],
            "distance": plans[-1]["distance"] if plans else self._plan.rules.log_margin,
            "most": launches or MOST_LAUNCHES,
            "risky": [setup.to_dict() for setup in self._risky(sound)],
        }
        self._store.describe({"confirmations": [*plans, plan]})
        return self.resume_confirmation()

    def _passing(self, setups: Sequence[Setup]) -> list[Setup]:
        """Those that the gates let through; the others are named.

        Raises:
            UsageError: None is left.
        """
        refused = self._refused(setups)
        sound = [setup for setup in setups if setup not in refused]
        if not sound:
            reasons = [f"{setup.key}: {reason}" for setup, reason in refused.items()]
            raise UsageError(
                "The gates refuse every candidate. " + "; ".join(reasons) + ". Name another "
                "setup, or change the limit under gates in the sweep file."
            )
        for setup, reason in refused.items():
            self._emit(SetupLeft(phase="confirm", setup=setup, reason=reason))
        return sound

    def _refused(self, setups: Iterable[Setup]) -> dict[Setup, str]:
        """Why some of them are unsafe, by the limits of now, whenever they were measured."""
        findings, refused = self._store.findings(), {}
        for setup in setups:
            gate = refused_by(setup, findings, self._plan.thresholds)
            if gate is not None:
                refused[setup] = f"unsafe: {gate.reason}"
            elif (text := refused_wire(self._plan, setup, findings)) is not None:
                refused[setup] = f"unsafe: wire-error: {text}"
        return refused

    def resume_confirmation(self) -> End:
        """Goes on with the last confirmation."""
        plans = self._store.about["confirmations"]
        self._run_confirmation(len(plans) - 1, plans[-1])
        return self._end()

    def _end(self) -> End:
        self._bench.save("confirm")
        return "interrupted" if self._bench.interrupted else "decided"

    def _survey(self) -> None:
        """Takes the values out of the space that need no probe to be ruled out."""
        if "race" in self._store.about:  # who races is decided, so no reading is needed
            self._plan = surveyed(self._plan, self._store.findings())
        else:
            self._plan = Survey(self._bench).run()
        self._bench.plan = self._plan
        if not self._bench.interrupted:
            self._store.describe({"removed": [asdict(item) for item in self._plan.space.removed()]})

    def _search(self) -> None:
        if self._bench.interrupted:
            return
        budget = self._plan.spec.budget
        phase = SearchPhase(self._bench)
        self._emit(
            SweepPlanned(
                setups=len(phase.valid),
                measured=len(phase.measured() & phase.valid.keys()),
                probes=budget.probes,
                minutes=budget.minutes,
            )
        )
        self._emit(PhaseStarted(phase="search", setups=len(phase.valid), launches=None))
        self._forget_cut("search:")
        phase.run()
        left = len(phase.valid.keys() - phase.measured())
        if left and not self._bench.interrupted:
            self._cut(f"search: {left} of {len(phase.valid)} setups were not tried")

    def _cut(self, text: str) -> None:
        """Says, and keeps, what the budget did not allow."""
        cuts = self._store.about.get("cuts", [])
        if text not in cuts:
            self._store.describe({"cuts": [*cuts, text]})
            self._emit(BudgetCut(text=text))

    def _forget_cut(self, start: str) -> None:
        """A later session, with more budget, went on."""
        cuts = self._store.about.get("cuts", [])
        self._store.describe({"cuts": [cut for cut in cuts if not cut.startswith(start)]})

    def _qualify(self) -> None:
        """Probes those near the leader once more when they are too many for the race."""
        searched = [probe for probe in self._bench.probes if probe.phase == "search"]
        ranked = standings(searched, self._plan.baseline)
        setups = qualifiers(ranked, self._plan.baseline, noise_floor(searched))
        if not setups:
            return
        self._emit(PhaseStarted(phase="race", setups=len(setups), launches=1, qualifying=True))
        done = Qualifying(self._bench, setups).run(self._allowed())
        if not done and not self._bench.interrupted:
            self._cut(f"race: not all {len(setups)} setups near the leader were probed again")

    def _screen(self) -> None:
        """Decides, once and from the search and the qualifying, who enters the race.

        Whoever would enter is sent through the gates; for each refused one the next best comes.
        """
        examination, afforded = make_examination(self._bench), True
        self._forget_cut("gates:")
        while True:
            tried = [probe for probe in self._bench.probes if probe.block is None]
            floor = noise_floor(tried)
            ranked, refused = self._sound(standings(tried, self._plan.baseline))
            if refused and self._retry_stopped():
                continue
            warned = self._risky(item.setup for item in ranked)
            found = screen(ranked, self._plan.baseline, floor, warned)
            if not afforded or not examination.left(found.entrants):
                break
            afforded = examination.run(found.entrants, self._allowed())
        if self._bench.interrupted:
            return
        best = found.entrants[:1]
        found = self._examined(examination, found)
        found = replace(found, dropped=(*refused, *found.dropped))
        racing = self._fitting(found.entrants)
        skipped = len(racing) < min(2, len(found.entrants))
        entrants = found.entrants if skipped else racing
        unfit = [Out(setup, 0, "no budget to race it") for setup in found.entrants[len(entrants) :]]
        decision = {
            "entrants": [setup.to_dict() for setup in entrants],
            "log_ratios": [found.log_ratios[setup] for setup in entrants],
            "dropped": [_left(out) for out in (*unfit, *found.dropped)],
            "limit": None if floor is None else found.limit,
            "noise_floor": floor,
            "skipped": skipped,
            "unexamined": [setup.to_dict() for setup in best if not found.entrants],
        }
        self._store.describe({"race": decision})
        if skipped:
            self._cut("race: skipped, its first look did not fit; the search alone chose")
        elif unfit:
            self._cut(f"race: {len(unfit)} of {len(found.entrants)} entrants were left out")

    def _retry_stopped(self) -> bool:
        """Probes again what was stopped for being behind a setup that has turned out unsafe."""
        before = len(self._bench.probes)
        setups = stopped_early(self._bench.probes)
        if setups and not self._bench.interrupted:
            stopped = f"{len(setups)} setups that were stopped early"
            self._emit(Judged(text=f"{stopped} are probed again, for a refused one led the search"))
            done = Qualifying(self._bench, setups).run(self._allowed())
            if not done and not self._bench.interrupted:
                self._cut(f"race: not all {stopped} behind a refused leader were probed again")
        return len(self._bench.probes) > before

    def _sound(self, ranked: Sequence[Standing]) -> tuple[list[Standing], list[Out]]:
        """The standings without what the gates refuse, and what they refuse."""
        others = (item.setup for item in ranked if item.setup != self._plan.baseline)
        refused = self._refused(others)
        sound = [item for item in ranked if item.setup not in refused]
        return sound, [Out(setup, 0, reason) for setup, reason in refused.items()]

    def _examined(self, examination: Examination, found: Screened) -> Screened:
        """Only those entrants that the budget allowed to examine."""
        left = examination.left(found.entrants)
        if not left:
            return found
        self._cut(f"gates: {len(left)} of {len(found.entrants)} entrants were not examined")
        out = tuple(Out(setup, 0, "no budget to examine it at the gates") for setup in left)
        kept = tuple(setup for setup in found.entrants if setup not in left)
        return replace(found, entrants=kept, dropped=(*out, *found.dropped))

    def _fitting(self, setups: tuple[Setup, ...]) -> tuple[Setup, ...]:
        """As many of the best as reach the first look with what the race may spend."""
        looks = self._plan.rules.looks
        while setups and looks[0] > blocks_in(
            self._bench.left(self._allowed()), self._bench.costs, len(setups) + 1
        ):
            setups = setups[:-1]
        return setups

    def _allowed(self) -> Amount:
        """What may be spent when the race ends, counted from the sweep's start."""
        return allowance("race", self._plan.budget, self._bench.costs)

    def _race(self) -> State | None:
        """The race as far as its share of the budget goes; None if it was interrupted early."""
        if "race" not in self._store.about:
            self._qualify()
            if not self._bench.interrupted:
                self._screen()
        if self._bench.interrupted:
            return None
        decision = self._store.about["race"]
        entrants = tuple(map(Setup.from_dict, decision["entrants"]))
        blocks = Blocks(self._bench)
        state = blocks.resume(start_race(self._plan.rules, self._plan.baseline, entrants))
        over = decision["skipped"] or self._store.about.get("confirmations")
        if over or next_block(state) is None:
            return state
        self._emit(PhaseStarted(phase="race", setups=len(state.setups), launches=state.wanted))
        self._forget_cut("race: ended")
        state = blocks.run(state, self._allowed())
        if next_block(state) is not None and not self._bench.interrupted:
            self._cut(f"race: ended after {len(state.rows)} of {state.wanted} launches")
        return state

    def _confirm(self, race: State) -> None:
        """The confirmation that the race calls for; planned once."""
        if not self._store.about.get("confirmations"):
            self._store.describe({"confirmations": [self._plan_confirmation(race)]})
        self._run_confirmation(0, self._store.about["confirmations"][0])

    def _plan_confirmation(self, race: State) -> dict[str, Any]:
        decision = self._store.about["race"]
        if decision.get("unexamined"):
            return self._no_confirmation(decision["unexamined"])
        screened = dict(
            zip(map(Setup.from_dict, decision["entrants"]), decision["log_ratios"], strict=True)
        )
        floor = decision["noise_floor"] or NOISE_UNKNOWN
        warned = self._risky(screened)
        sound = still_sound(race, self._refused(race.entrants))
        found = self._affordable(candidates(sound, screened, floor, frozenset(warned)))
        return {
            "setups": [setup.to_dict() for setup in found.setups],
            "distance": found.distance,
            "most": found.launches,
            "risky": [setup.to_dict() for setup in warned if setup in found.setups],
            "race_out": [_left(out) for out in sound.out],
            "race_blocks": len(race.rows),
        }

    def _no_confirmation(self, unexamined: list[dict[str, Any]]) -> dict[str, Any]:
        """Of a leader that the budget did not allow to examine: nothing is known of it.

        A later confirmation examines it first.
        """
        self._cut("confirm: skipped, the leader was not examined at the gates")
        empty: dict[str, Any] = {"most": 0, "risky": [], "race_out": [], "race_blocks": 0}
        return {"setups": unexamined, "distance": self._plan.rules.log_margin, **empty}

    def _risky(self, setups: Iterable[Setup]) -> list[Setup]:
        findings = self._store.findings()
        return [setup for setup in setups if risky(self._plan, setup, findings)]

    def _affordable(self, found: Candidates) -> Candidates:
        """Fewer rivals, then fewer launches, where the rest of the budget asks for it."""
        setups = found.setups
        while len(setups) > 1 and self._launches_for(len(setups)) < LEAST_LAUNCHES:
            setups = setups[:-1]
        if len(setups) < len(found.setups):
            self._cut(f"confirm: {len(found.setups) - len(setups)} rivals were left out")
        most = min(MOST_LAUNCHES, self._launches_for(len(setups)))
        if most < LEAST_LAUNCHES and setups:
            self._cut(f"confirm: skipped, {most} launches fit and a verdict takes {LEAST_LAUNCHES}")
            most = 0
        elif most < found.launches:
            self._cut(f"confirm: at most {most} launches, {found.launches} were wanted")
        return Candidates(setups, found.distance, most)

    def _launches_for(self, setups: int) -> int:
        return blocks_in(self._bench.left(), self._bench.costs, setups + 2)

    def _run_confirmation(self, number: int, plan: dict[str, Any]) -> None:
        blocks = Blocks(self._bench, number)
        state = planned_confirmation(self._plan.rules, self._plan.baseline, plan)
        state = blocks.resume(state)
        if next_block(state) is None:
            return
        self._emit(PhaseStarted(phase="confirm", setups=len(state.setups), launches=state.most))
        state = blocks.run(state, self._plan.budget)
        if not self._bench.interrupted:
            self._end_confirmation(number, state)

    def _end_confirmation(self, number: int, state: State) -> None:
        """Says, and keeps, where the budget ended it."""
        self._forget_cut("confirm: ended")
        if next_block(state) is None:
            return
        plans = self._store.about["confirmations"]
        plans[number]["ended"] = len(state.rows)
        self._store.describe({"confirmations": plans})
        self._cut(f"confirm: ended after {len(state.rows)} of {state.wanted} launches")


def _left(out: Out) -> dict[str, str]:
    return {"key": out.setup.key, "reason": out.reason}
