"""One probe of a script: read the wire, warm up, time the phases, time the whole.

It goes as `probe.measure` does, but it cannot ask for a step; it is sent each one that the script
has made.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from autotune.outcome import Measurement, Outcome
from autotune.probe import health, memory
from autotune.probe.attach.windows import How, Window
from autotune.probe.finding import Finding, Stopped, judge, stop_early
from autotune.probe.line import Line
from autotune.probe.pace import WINDOW, Clock, StepTimes, Stopwatch, steady
from autotune.probe.wire import WireTap, mismatch
from autotune.probe.workload import Rank
from autotune.request import ProbeRequest

Found = TypeVar("Found")
Part = Generator[How, Window, Found]
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


class Course:
    """What is done with each window of a script, on one rank."""

    def __init__(
        self,
        request: ProbeRequest,
        place: Rank,
        line: Line,
        tap: WireTap,
        watch: Stopwatch,
        *,
        losses: bool = True,
    ) -> None:
        self._losses = losses
        self._setup = request.setup
        self._measure = request.measure
        self._place = place
        self._line = line
        self._control = line.control
        self._tap = tap
        self._watch = watch
        self._now = Clock(place.device).now
        self._windows: list[Window] = []
        self._slowest: list[float] = []  # backward seconds of the slowest rank, one a window

    def run(self) -> Part[Outcome]:
        """The whole probe."""
        return self.outcome((yield from self._find()))

    def outcome(self, found: Finding) -> Outcome:
        """What the controller hears; every rank calls it."""
        (resident,) = self._control.maximum([float(memory.resident_bytes())])
        kind, reason = judge(found)
        return Outcome(
            kind=kind,
            reason=reason,
            measurement=found.measurement,
            seconds=self._watch.seconds,
            resident_bytes=int(resident),
            saved_seconds=found.stopped.saved_seconds if found.stopped else 0.0,
            throttled=found.throttled,
        )

    def _find(self) -> Part[Finding]:
        with self._watch.phase("wire"):
            first = yield from self._next(How.TAPPED)
        wrong = self._wrong_wire(first) or self._wrong_accumulation(first)
        (inert,) = self._control.maximum([float(wrong is not None)])
        if inert:
            other = "Another rank saw other collectives than the setup asks for."
            return Finding(wire=wrong or other)
        return (yield from self._measured())

    def _next(self, how: How) -> Part[Window]:
        window = yield how
        self._windows.append(window)
        (slowest,) = self._control.maximum([window.backward]) if how is How.TIMED else (0.0,)
        self._slowest.append(slowest)
        return window

    def _wrong_wire(self, first: Window) -> str | None:
        """As for our own workloads, but that a script may reduce other things, too.

        Where the dtype that was asked for carried the whole gradient, the rest was none of it:
        statistics of normalisation layers, or metrics.
        """
        dtype = self._setup.grad_comm_dtype
        carried = sum(item.bytes for item in self._tap.collectives() if item.dtype == dtype)
        if carried // ELEMENT_BYTES[dtype] >= first.elements > 0:
            return None
        return mismatch(self._tap, self._setup, first.elements, self._place.world_size)

    def _wrong_accumulation(self, first: Window) -> str | None:
        """A script may call backward several times a micro-batch, but no fraction of a time."""
        asked = self._setup.gradient_accumulation
        if first.backwards % asked == 0:
            return None
        return (
            f"The setup asks for {asked} micro-batches in an optimizer step; the script called "
            f"backward {first.backwards} times. Pass it {{gradient_accumulation}}, or correct "
            "workload.gradient_accumulation."
        )

    def _measured(self) -> Part[Finding]:
        steps: int = 0
        with self._watch.phase("warm_up"):
            is_steady = yield from self._warm_up()
            warm = len(self._windows) - 1  # the tapped step was the first
            reason = self._ask(0, WINDOW) if self._measure.burst_steps and warm else None
        if reason is None:
            with self._watch.phase("timed"):
                reason = yield from self._timed()
            steps = len(self._windows) - 1 - warm
        throttled = health.throttled(self._place.device, self._control)
        if reason is not None:
            return Finding(stopped=self._stopped(reason, warm), throttled=throttled)
        with self._watch.phase("end_to_end"):
            seconds = yield from self._end_to_end()
        return Finding(
            measurement=self._measurement(1 + warm, steps, seconds, is_steady),
            throttled=throttled,
        )

    def _warm_up(self) -> Part[bool]:
        """Windows until the backward is steady; whether it is."""
        for done in range(1, self._measure.warm_up_cap + 1):
            yield from self._next(How.TIMED)
            recent = self._slowest[1:][-WINDOW:]
            if done >= self._measure.warm_up_steps and steady(recent):
                return True
        return False

    def _timed(self) -> Part[str | None]:
        """The timed windows, and why the controller stopped them if it did."""
        burst = self._measure.burst_steps
        for done in range(1, self._measure.timed_steps + 1):
            yield from self._next(How.TIMED)
            if burst and done % burst == 0 and done < self._measure.timed_steps:
                reason = self._ask(done // burst, burst)
                if reason is not None:
                    return reason
        return None

    def _ask(self, index: int, last: int) -> str | None:
        return self._line.ask(index, self._slowest[1:][-last:])

    def _end_to_end(self) -> Part[float]:
        """Wall seconds of the slowest rank, from the end of a step to the end of another."""
        self._control.barrier()
        start = self._now()
        for _ in range(self._measure.end_to_end_steps):
            yield from self._next(How.PLAIN)
        (seconds,) = self._control.maximum([self._now() - start])
        return seconds

    def _stopped(self, reason: str, warm: int) -> Stopped:
        times = [
            StepTimes(window.rest, slowest, window.step, applied=True, loss=0.0)
            for window, slowest in zip(self._windows, self._slowest, strict=True)
        ][1:]
        return stop_early(reason, self._measure, times[:warm], times[warm:])

    def _measurement(self, before: int, steps: int, seconds: float, is_steady: bool) -> Measurement:
        """All numbers; what is still on the device is waited for here."""
        timed = slice(before, before + steps)
        applied = [window.applied for window in self._windows]
        losses = self._mean([window.loss for window in self._windows])
        (peak,) = self._control.maximum([float(memory.peak_bytes(self._place.device))])
        return Measurement(
            forward_seconds=self._slowest_of([item.rest for item in self._windows[timed]]),
            backward_seconds=tuple(self._slowest[timed]),
            step_seconds=self._slowest_of([item.step for item in self._windows[timed]]),
            skipped_steps=applied[timed].count(False),
            tokens_per_step=self._samples(),
            end_to_end_seconds=seconds,
            end_to_end_steps=applied[before + steps :].count(True),
            peak_memory_bytes=int(peak),
            wire=self._tap.collectives(),
            losses=losses[timed],
            warm_up_steps=before,
            trained_steps=len(applied),
            trained_skips=applied.count(False),
            trained_losses=losses if self._losses else (),
            gradient_norms=tuple(item.norm for item in self._windows) if self._losses else (),
            steady=is_steady,
        )

    def _slowest_of(self, values: Sequence[float]) -> tuple[float, ...]:
        return tuple(self._control.maximum(list(values)))

    def _mean(self, values: Sequence[float]) -> tuple[float, ...]:
        """Over the ranks; not finite if it was so on any of them."""
        totals = self._control.total(list(values))
        return tuple(total / self._control.world_size for total in totals)

    def _samples(self) -> int:
        """Samples of all ranks in one optimizer step, which stand for its tokens.

        How many tokens a script puts into a sample cannot be seen in a way that is the same for
        each setup: with padding to the longest of a micro-batch, larger micro-batches have more.
        Samples are the same for all setups, because they keep the global batch.
        """
        per_rank = self._setup.micro_batch * self._setup.gradient_accumulation
        return per_rank * self._place.world_size
