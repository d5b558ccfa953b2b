"""Sweeps on a launcher that answers by a rule: the whole loop in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.events import BlockStarted, Event, ProbeFinished
from autotune.launch import Judge, Launch, LaunchFailedError, Machine
from autotune.outcome import Outcome, OutcomeKind
from autotune.readings import Exposure, Reading
from autotune.request import ProbeRequest, ReadingRequest
from autotune.search import Store
from autotune.setup import Setup
from autotune.spec import read_spec
from autotune.sweep import Plan, Sweep
from autotune.sweep.wants import always_reduces
from autotune.wiring.plan import plan_of
from tests.build import make_measurement
from tests.readings import READINGS

SWEEP = """
version: 1
name: scripted
workload:
  gpt: {layers: 2, width: 32, heads: 2, vocab: 64, sequence: 16}
  micro_batch: 2
  gradient_accumulation: 2
launch: {local: {ranks: 2}}
space:
  backend: deepspeed
  precision: [fp32, bf16]
  grad_comm_dtype: [fp32, bf16]
  zero_stage: 1
  bucket_bytes: 25e6
baseline: {backend: deepspeed, precision: fp32, zero_stage: 1, grad_comm_dtype: fp32}
budget: {minutes: 60}
"""
FACTS = {
    "device": "cpu",
    "gpus": [],
    "bf16": "native",
    "fp16": "native",
    "tf32": False,
    "cores": 2,
    "torch": "2.13.0",
    "deepspeed": "0.19.8",
    "cuda": None,
    "nccl": None,
    "cpu": "a CPU",
    "autotune": "0",
}
LAUNCH_SECONDS, PROBE_SECONDS = 5.0, 1.0


@dataclass(frozen=True)
class Where:
    """What is probed: block None in the search, and which of a setup's probes in the launch."""

    phase: str
    block: int | None
    occurrence: int


Rule = Callable[[Setup, Where], "float | OutcomeKind"]


def make_plan(folder: Path, text: str = SWEEP) -> Plan:
    file = folder / "sweep.yaml"
    file.write_text(text)
    return plan_of(read_spec(file), Machine(FACTS)).plan


def answer(speed: float | OutcomeKind, steps: int) -> Outcome:
    """An outcome of log speed ``speed``, or a failure."""
    if isinstance(speed, str):
        return Outcome(kind=speed, reason="because")
    seconds = 0.1 * math.exp(-speed)
    return Outcome(
        kind="ok", measurement=make_measurement(seconds, end_to_end=5 * seconds, steps=steps)
    )


def sound_reading(request: ReadingRequest) -> Reading:
    """What a workload with exposed communication and a sound setup answers."""
    return READINGS[request.ask]


@dataclass
class ScriptedLauncher:
    """Answers by a rule; hears from the sweep's events which block is running."""

    rule: Rule
    ranks: int = 2
    fresh: bool = False
    started: list[int] = field(default_factory=list)
    seconds: float = 0.0
    cold_seconds: float = 0.0  # of the first launch, on top
    where: Where = Where("search", None, 0)
    listeners: list[Callable[[Event], None]] = field(default_factory=list)
    readings: Callable[[ReadingRequest], Reading | Outcome] = sound_reading
    asked: list[ReadingRequest] = field(default_factory=list)
    alone: list[int] = field(default_factory=list)  # launches of one rank
    broken: Callable[[int, bool], bool] = lambda number, alone: False  # launches that never start
    serving_alone: bool = False  # while ``readings`` answers

    def clock(self) -> float:
        return self.seconds

    def start(self, number: int, *, alone: bool = False) -> Launch:
        self.started.append(number)
        self.seconds += LAUNCH_SECONDS + (self.cold_seconds if len(self.started) == 1 else 0.0)
        self.where = Where("search", None, 0)
        if alone:
            self.alone.append(number)
        if self.broken(number, alone):
            raise LaunchFailedError("No workers.")
        return ScriptedLaunch(self, alone=alone)

    def hear(self, event: Event) -> None:
        if isinstance(event, BlockStarted):
            self.where = Where(event.phase, event.number, 0)
        for listener in self.listeners:
            listener(event)


@dataclass
class ScriptedLaunch:
    launcher: ScriptedLauncher
    alone: bool = False
    alive: bool = True
    others_busy: float | None = None
    served: list[Setup] = field(default_factory=list)
    warmed: bool = False

    def probe(
        self, request: ProbeRequest, deadline_seconds: float, judge: Judge | None = None
    ) -> Outcome:
        if not self.warmed:
            self.warmed = True
            return answer(0.0, request.measure.timed_steps)
        self.launcher.seconds += PROBE_SECONDS
        where = replace(self.launcher.where, occurrence=self.served.count(request.setup))
        self.served.append(request.setup)
        outcome = answer(self.launcher.rule(request.setup, where), request.measure.timed_steps)
        self.alive = outcome.kind not in ("crash", "hang", "oom")
        return outcome

    def read(self, request: ReadingRequest, deadline_seconds: float) -> Reading | Outcome:
        self.launcher.seconds += PROBE_SECONDS
        self.launcher.asked.append(request)
        self.launcher.serving_alone = self.alone
        found = self.launcher.readings(request)
        if isinstance(found, Outcome):
            self.alive = found.kind not in ("crash", "hang", "oom")
        if isinstance(found, Exposure) and always_reduces(request.setup):
            seconds = found.unsynced_seconds if self.alone else found.synced_seconds
            return Exposure(synced_seconds=seconds, unsynced_seconds=())
        return found

    def stop(self) -> None:
        self.alive = False

    def kill(self) -> None:
        self.alive = False


class Killed(BaseException):
    """Stands for a kill -9 of the controller."""


def nth(number: int, act: Callable[[], None], *kinds: type) -> Callable[[Event], None]:
    """Acts at event ``number``, from 1, of the kinds; of any where none is named."""
    count = 0

    def listen(event: Event) -> None:
        nonlocal count
        if not kinds or isinstance(event, kinds):
            count += 1
            if count == number:
                act()

    return listen


def die() -> None:
    raise Killed


def killer(after: int) -> Callable[[Event], None]:
    """Kills the controller once ``after`` probes are kept."""
    finished = []

    def listen(event: Event) -> None:
        if isinstance(event, ProbeFinished):
            finished.append(event)
            if len(finished) == after:
                raise Killed

    return listen


def new_store(plan: Plan, folder: Path | None = None) -> Store:
    store = Store(folder, create=True)
    describe(store, plan)
    return store


def describe(store: Store, plan: Plan) -> None:
    store.describe(
        {
            "name": plan.spec.name,
            "baseline": plan.baseline.to_dict(),
            "margin": plan.spec.margin,
            "removed": [],
            "planned": {},
            "fingerprint": {"measure": {"warm_up_cap": 12}},
            "gates": dict(plan.spec.gates),
            "target": {
                "world_size": plan.target_world_size,
                "steps": plan.horizon,
                "learning_rate": plan.learning_rate,
                "assumed": [],
            },
        }
    )


def make_sweep(plan: Plan, store: Store, launcher: ScriptedLauncher) -> Sweep:
    return Sweep(plan, store, launcher, launcher.hear)
