"""Before the search: what communication costs, what the real run's ranks and steps ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.decide.exposure import Exposed, closes, exposed_communication, justification
from autotune.events import Judged, PhaseStarted
from autotune.launch import Launch
from autotune.numerics.findings import Communication, Finding, Missing, WireErrors
from autotune.numerics.names import reducer_of
from autotune.numerics.reduction import grade, predict, sentence
from autotune.outcome import Outcome
from autotune.readings import Exposure, GradientSample, Reading, ScaleTrace
from autotune.setup import Setup
from autotune.sweep.bench import Bench
from autotune.sweep.plan import Plan
from autotune.sweep.scaling import choose_scales
from autotune.sweep.surveyed import surveyed, wire_bound
from autotune.sweep.wants import Want, wants


class Survey:
    """Takes the readings that the plan needs and the run does not have yet."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._plan = bench.plan
        self._wants = wants(bench.plan)

    def run(self) -> Plan:
        """Returns the plan with what was found; all of it is also kept in the store."""
        self._keep_to_margin()
        left = self._left()
        if left:
            self._bench.emit(PhaseStarted(phase="numerics", setups=len(left), launches=None))
        while left and not self._bench.interrupted:
            with self._bench.launch("numerics") as launch:
                if launch is not None:
                    self._serve(launch, left)
            left = self._left()
        if not self._bench.interrupted:
            choose_scales(self._bench)
        return surveyed(self._plan, self._bench.store.findings())

    def _left(self) -> list[Want]:
        known = self._bench.store.findings()
        return [want for want in self._wants if want.name not in known]

    def _serve(self, launch: Launch, left: Sequence[Want]) -> None:
        """Takes readings until all are taken or the launch is of no more use."""
        self._bench.baseline_measured()  # it warmed the launch
        for want in left:
            if self._bench.interrupted or not launch.alive:
                return
            reading = self._bench.read(launch, want.ask, want.setup, want.steps)
            if isinstance(reading, Exposure) and not reading.unsynced_seconds:
                if self._bench.interrupted:
                    return
                reading = self._against_one_rank(want, reading)
            found = self._conclude(want, reading)
            self._bench.store.find(want.name, found)
            for text in self._sentences(want, found):
                self._bench.emit(Judged(text=text))

    def _against_one_rank(self, want: Want, synced: Exposure) -> Reading | Outcome:
        """Where a library always reduces, one rank alone does the work without communication."""
        with self._bench.launch("numerics", alone=True) as launch:
            if launch is None:
                return Outcome(kind="crash", reason="A launch of one rank did not start.")
            alone = self._bench.read(launch, want.ask, want.setup, want.steps)
        if not isinstance(alone, Exposure):
            return alone
        return replace(synced, unsynced_seconds=alone.synced_seconds)

    def _conclude(self, want: Want, reading: Reading | Outcome) -> Finding:
        """From what was measured to what the run keeps."""
        if isinstance(reading, Outcome):
            return Missing(reason=f"{reading.kind}: {reading.reason}")
        if isinstance(reading, Exposure):
            found = exposed_communication(reading)
            if found is None:
                return Missing(reason="too few backward passes could be timed")
            return self._communication(want.setup.key, found)
        if isinstance(reading, GradientSample):
            return self._wire_errors(want.setup, reading)
        assert isinstance(reading, ScaleTrace)
        return reading

    def _keep_to_margin(self) -> None:
        """What earlier sessions measured, judged by the margin of this one."""
        for name, found in self._bench.store.findings().items():
            if isinstance(found, Communication):
                exposed = Exposed(found.backward_seconds, found.exposed_seconds, found.interval)
                now = self._communication(found.setup, exposed)
                if now != found:
                    self._bench.store.find(name, now)

    def _communication(self, setup_key: str, found: Exposed) -> Communication:
        closed = closes(found, self._plan.spec.margin)
        return Communication(
            setup=setup_key,
            backward_seconds=found.backward_seconds,
            exposed_seconds=found.exposed_seconds,
            interval=found.interval,
            gain_bound=found.gain_bound,
            closed=closed is not None,
            text=justification(found) if closed is None else f"{closed[0].upper()}{closed[1:]}.",
        )

    def _wire_errors(self, setup: Setup, reading: GradientSample) -> Finding:
        ranks = self._plan.target_world_size
        assert ranks is not None
        wires = sorted({setup.grad_comm_dtype for setup in self._plan.space.valid()})
        found = predict(reading, ranks, wires)
        return WireErrors(
            micro_batch=setup.micro_batch,
            micro_batches=reading.micro_batches,
            predictions=tuple(found),
        )

    def _sentences(self, want: Want, found: Finding) -> Iterator[str]:
        """What people are told of a finding."""
        if isinstance(found, Missing):
            yield f"{want.name}: could not be measured ({found.reason})"
        elif isinstance(found, Communication):
            yield f"{reducer_of(want.setup)}: {found.text}"
        elif isinstance(found, WireErrors):
            bound = wire_bound(self._plan)
            for item in found.predictions:
                yield sentence(item, grade(item, warn=bound.warn, refuse=bound.limit))
