"""One probe: build, read the wire, warm up, time the phases, time the whole, clean up."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.outcome import Measurement, Outcome
from autotune.probe import health, memory
from autotune.probe.build import build_engine
from autotune.probe.control import Control
from autotune.probe.engine import Engine, RefusedSetupError, ScaleFloorError
from autotune.probe.finding import Finding, judge, stop_early
from autotune.probe.line import Line
from autotune.probe.pace import WINDOW, StepTimes, Stopwatch, steady
from autotune.probe.pace import Clock as Clock  # others take it from here
from autotune.probe.wire import WireTap, mismatch, trainable_elements
from autotune.probe.workload import Rank, Task, build_task
from autotune.request import Measure, ProbeRequest


def run_probe(request: ProbeRequest, place: Rank, control: Control, line: Line) -> Outcome:
    """Runs one probe; every rank calls it and every rank gets the same outcome.

    Args:
        request: What to measure.
        place: This rank.
        control: Side channel between the ranks.
        line: Hears of each phase as it starts, and may stop the probe after a burst of steps.

    Returns:
        ``ok``, ``pruned``, ``invalid``, ``inert`` or ``unsafe``. Whatever else goes wrong is
        raised, and costs the launch, because the ranks may no longer agree on where they are.
    """
    watch = Stopwatch(line.announce)
    memory.reset_peak(place.device)
    try:
        with watch.phase("build"):
            task = build_task(request.workload, request.setup.micro_batch, place)
            elements = trainable_elements(task.model)
            engine = build_engine(task, request.setup, request.rendered)
    except RefusedSetupError as error:
        return Outcome(kind="invalid", reason=str(error), seconds=watch.seconds)
    meter = Meter(engine, task, request, place, control)
    try:
        found = _find(meter, watch, request, elements, place, control, line)
    except ScaleFloorError as error:
        found = Finding(refused=str(error))
    with watch.phase("clean_up"):
        engine.close()
        del engine, task, meter
        memory.release(place.device)
    (resident,) = control.maximum([float(memory.resident_bytes())])
    kind, reason = judge(found)
    return Outcome(
        kind=kind,
        reason=reason,
        measurement=found.measurement,
        seconds=watch.seconds,
        resident_bytes=int(resident),
        saved_seconds=found.stopped.saved_seconds if found.stopped else 0.0,
        throttled=found.throttled,
    )


def _find(
    meter: Meter,
    watch: Stopwatch,
    request: ProbeRequest,
    elements: int,
    place: Rank,
    control: Control,
    line: Line,
) -> Finding:
    """Reads the wire, and measures where it is right on every rank."""
    with watch.phase("wire"):
        tap = meter.tapped_step()
    wrong = mismatch(tap, request.setup, elements, place.world_size)
    (inert,) = control.maximum([float(wrong is not None)])
    if inert:
        return Finding(wire=wrong or "Another rank saw other collectives than the setup asks for.")
    return _measure(meter, watch, request.measure, tap, line)


def _measure(meter: Meter, watch: Stopwatch, measure: Measure, tap: WireTap, line: Line) -> Finding:
    steps: list[StepTimes] = []
    with watch.phase("warm_up"):
        warm, is_steady = meter.warm_up(measure)
        reason = line.ask(0, _backward(warm[-WINDOW:])) if measure.burst_steps and warm else None
    if reason is None:
        with watch.phase("timed"):
            steps, reason = _timed(meter, measure, line)
    throttled = meter.throttled()
    if reason is not None:
        return Finding(stopped=stop_early(reason, measure, warm, steps), throttled=throttled)
    with watch.phase("end_to_end"):
        seconds, applied = meter.end_to_end(measure.end_to_end_steps)
    measurement = Measurement(
        forward_seconds=tuple(step.forward for step in steps),
        backward_seconds=_backward(steps),
        step_seconds=tuple(step.step for step in steps),
        skipped_steps=sum(not step.applied for step in steps),
        tokens_per_step=meter.tokens_per_step(),
        end_to_end_seconds=seconds,
        end_to_end_steps=applied,
        peak_memory_bytes=meter.peak_bytes(),
        wire=tap.collectives(),
        losses=tuple(meter.mean_losses(steps)),
        warm_up_steps=1 + len(warm),  # the tapped step was the first
        trained_steps=meter.steps,
        trained_skips=meter.skips,
        steady=is_steady,
    )
    return Finding(measurement=measurement, throttled=throttled)


def _timed(meter: Meter, measure: Measure, line: Line) -> tuple[list[StepTimes], str | None]:
    """The timed steps, and why the controller stopped them if it did.

    After the last step nobody is asked: what has been measured by then is kept.
    """
    steps: list[StepTimes] = []
    burst = measure.burst_steps
    for done in range(1, measure.timed_steps + 1):
        steps.append(meter.timed_step())
        if burst and done % burst == 0 and done < measure.timed_steps:
            reason = line.ask(done // burst, _backward(steps[-burst:]))
            if reason is not None:
                return steps, reason
    return steps, None


def _backward(steps: Sequence[StepTimes]) -> tuple[float, ...]:
    return tuple(step.backward for step in steps)


class Meter:
    """Trains one engine and times it."""

    def __init__(
        self, engine: Engine, task: Task, request: ProbeRequest, place: Rank, control: Control
    ) -> None:
        self._engine = engine
        self._task = task
        self._accumulation = request.setup.gradient_accumulation
        self._device = place.device
        self._control = control
        self._now = Clock(place.device).now
        # Of the whole probe: a scaler that starts too high skips before anything is timed.
        self.steps = self.skips = 0

    def timed_step(self) -> StepTimes:
        """One optimizer step with every phase timed, each after a barrier."""
        forward = backward = 0.0
        for _ in range(self._accumulation):
            batch = next(self._task.batches)
            self._control.barrier()
            start = self._now()
            loss = self._engine.forward(batch)
            forward += self._now() - start
            self._control.barrier()
            start = self._now()
            self._engine.backward(loss)
            backward += self._now() - start
            self._engine.end_micro_batch()
        self._control.barrier()
        start = self._now()
        applied = self._update()
        step = self._now() - start
        forward, backward, step = self._control.maximum([forward, backward, step])
        return StepTimes(forward, backward, step, applied, float(loss.detach()))

    def _plain_step(self) -> bool:
        """One optimizer step without any synchronisation of ours."""
        for _ in range(self._accumulation):
            self._engine.backward(self._engine.forward(next(self._task.batches)))
            self._engine.end_micro_batch()
        return self._update()

    def _update(self) -> bool:
        """The optimizer step; whether it was applied."""
        applied = self._engine.step()
        self.steps += 1
        self.skips += not applied
        return applied

    def warm_up(self, measure: Measure) -> tuple[list[StepTimes], bool]:
        """Steps until the backward is steady, and whether it is."""
        steps: list[StepTimes] = []
        while len(steps) < measure.warm_up_cap:
            steps.append(self.timed_step())
            if len(steps) >= measure.warm_up_steps and steady(_backward(steps[-WINDOW:])):
                return steps, True
        return steps, False

    def end_to_end(self, steps: int) -> tuple[float, int]:
        """Wall seconds of the slowest rank for ``steps`` steps, and how many were applied."""
        self._control.barrier()
        start = self._now()
        applied = sum(self._plain_step() for _ in range(steps))
        (seconds,) = self._control.maximum([self._now() - start])
        return seconds, applied

    def tapped_step(self) -> WireTap:
        """The first step, whose gradient collectives are recorded; never timed."""
        tap = WireTap()
        for _ in range(self._accumulation):
            loss = self._engine.forward(next(self._task.batches))
            with tap:
                self._engine.backward(loss)
            self._engine.end_micro_batch()
        self._update()
        return tap

    def tokens_per_step(self) -> int:
        """Tokens of all ranks in one optimizer step."""
        tokens = self._task.tokens(next(self._task.batches)) * self._accumulation
        (total,) = self._control.total([float(tokens)])
        return int(total)

    def mean_losses(self, steps: Sequence[StepTimes]) -> list[float]:
        """Loss of each step, averaged over the ranks; not finite if it was so on any of them."""
        totals = self._control.total([step.loss for step in steps])
        return [total / self._control.world_size for total in totals]

    def throttled(self) -> tuple[str, ...]:
        """Why a GPU of any rank runs below its clocks now."""
        return health.throttled(self._device, self._control)

    def peak_bytes(self) -> int:
        """Peak memory of the fullest rank since the probe began."""
        (peak,) = self._control.maximum([float(memory.peak_bytes(self._device))])
        return int(peak)
