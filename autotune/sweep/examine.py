"""The gates: a setup that does not train enters no race."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.decide import Out, State
from autotune.decide.budget import SHARES, Amount
from autotune.events import Judged, PhaseStarted
from autotune.launch import Launch
from autotune.numerics.findings import Examined, Finding, Missing, judged
from autotune.numerics.gates import GateResult, judge, refusal
from autotune.numerics.names import gates_name
from autotune.numerics.thresholds import Thresholds
from autotune.outcome import Outcome
from autotune.readings import GradientReading
from autotune.setup import Setup
from autotune.sweep.bench import Bench
from autotune.sweep.surveyed import Findings


def refused_by(setup: Setup, findings: Findings, thresholds: Thresholds) -> GateResult | None:
    """The gate that refuses a setup, if it was examined and one does."""
    return refusal(judged(setup, findings, thresholds))


def still_sound(race: State, refused: Mapping[Setup, str]) -> State:
    """A race without what is refused by limits that are newer than it, with the reasons.

    Where nobody else is left of it, all other entrants that did not fail come back; the search
    ranks them.
    """
    if not refused:
        return race
    out = (*race.out, *(Out(setup, len(race.rows), reason) for setup, reason in refused.items()))
    left = tuple(setup for setup in race.setups if setup not in refused)
    if left:
        return replace(race, setups=left, out=out)
    failed = {item.setup for item in race.out if item.failed}
    back = tuple(setup for setup in race.entrants if setup not in {*refused, *failed})
    gone = tuple(item for item in out if item.setup not in back)
    return replace(race, setups=back, rows=(), out=gone)


class Examination:
    """Sends setups through the gates, each once in a run."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def left(self, setups: Sequence[Setup]) -> list[Setup]:
        """Those that were not examined yet, with the baseline first among them."""
        known = self._bench.store.findings()
        every = dict.fromkeys((self._bench.plan.baseline, *setups) if setups else ())
        return [setup for setup in every if gates_name(setup) not in known]

    def run(self, setups: Sequence[Setup], allowed: Amount) -> bool:
        """Whether all were examined within ``allowed``, counted from the sweep's start.

        The baseline is examined too. It is what the user has, so it is never refused; but if it
        does not train they should hear of it.
        """
        if left := self.left(setups):
            self._bench.emit(
                PhaseStarted(phase="numerics", setups=len(left), launches=None, examining=True)
            )
        while left := self.left(setups):
            if self._bench.interrupted or not self._affords(allowed):
                return False
            with self._bench.launch("numerics") as launch:
                if launch is not None:
                    self._serve(launch, left, allowed)
        return True

    def _affords(self, allowed: Amount) -> bool:
        """Whether one more may be examined; the baseline and the leader are at any price."""
        bench = self._bench
        known = bench.store.findings()
        measured = dict.fromkeys((bench.plan.baseline, *(probe.setup for probe in bench.probes)))
        if sum(gates_name(setup) in known for setup in measured) < 2:
            return True
        spent = bench.spent.phases["numerics"]
        own = spent.seconds - spent.launch_seconds
        share = own < SHARES["numerics"] * bench.plan.budget.seconds
        return share and bench.left(allowed).covers(bench.costs.block(1))

    def _serve(self, launch: Launch, setups: Sequence[Setup], allowed: Amount) -> None:
        self._bench.baseline_measured()  # it warmed the launch
        for setup in setups:
            if self._bench.interrupted or not launch.alive or not self._affords(allowed):
                return
            steps = self._bench.plan.spec.gate_steps
            found = self._judged(setup, self._bench.read(launch, "gradient", setup, steps))
            self._bench.store.find(gates_name(setup), found)

    def _judged(self, setup: Setup, reading: object) -> Finding:
        if isinstance(reading, Outcome):
            reason = f"{reading.kind}: {reading.reason}"
            self._bench.emit(Judged(text=f"{setup.key}: not examined ({reason})"))
            return Missing(reason=reason)
        assert isinstance(reading, GradientReading)
        results = judge(setup, reading, self._bench.plan.thresholds)
        failed = refusal(results)
        is_baseline = setup == self._bench.plan.baseline
        self._bench.emit(
            Judged(
                text=summary(setup, results),
                refused=None if is_baseline or failed is None else setup,
            )
        )
        return Examined(setup=setup.key, reading=reading)


def summary(setup: Setup, results: Sequence[GateResult]) -> str:
    """What the gates say of a setup, in one line."""
    failed = refusal(results)
    if failed is not None:
        return f"{setup.key}: unsafe, {failed.reason}"
    warned = [item.gate for item in results if item.status == "warn"]
    if warned:
        return f"{setup.key}: passes {len(results)} gates, with a warning of {', '.join(warned)}"
    return f"{setup.key}: passes {len(results)} gates"
