"""Where a probe's wall time goes, and what keeping workers warm saves.

Run as ``python benchmarks/probe_overhead.py [SWEEP_FILE] [--setups N]``. Probes the first N
setups of the sweep file three times: in one warm launch; each in a fresh launch that is warmed
by a throw-away probe first, as a sweep warms every launch; each in a fresh launch that is not.
Prints wall seconds a probe with its share of starting and stopping workers, seconds by phase,
the share of wall time in timed steps, and the ratios.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from autotune.backends import backend_of
from autotune.launch import Launch, LocalLauncher
from autotune.launch.describe import worker_environment
from autotune.outcome import Outcome
from autotune.render import render
from autotune.request import ProbeRequest
from autotune.setup import Setup
from autotune.spec import Spec
from autotune.sweep.bench import WARMING
from autotune.wiring import make_plan

PHASES = ("build", "wire", "warm_up", "timed", "end_to_end", "clean_up")


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall seconds of a series of probes and what the workers said of their phases."""

    wall_seconds: float
    answers: Sequence[tuple[float, Outcome]]

    def a_probe(self, phase: str) -> float:
        """Mean seconds of a phase."""
        return fmean(outcome.seconds.get(phase, 0.0) for _, outcome in self.answers)

    @property
    def control(self) -> float:
        """Mean seconds between request and answer that no phase accounts for."""
        return fmean(wall - sum(outcome.seconds.values()) for wall, outcome in self.answers)

    @property
    def answer_seconds(self) -> float:
        """Wall seconds from a request to its answer."""
        return fmean(wall for wall, _ in self.answers)

    @property
    def probe_seconds(self) -> float:
        """Wall seconds a probe, starting and stopping the workers included."""
        return self.wall_seconds / len(self.answers)


def probe(launch: Launch, setup: Setup, spec: Spec) -> tuple[float, Outcome]:
    """One probe as the sweep does it, with its wall seconds."""
    backend = backend_of(setup)
    request = ProbeRequest(
        setup=setup,
        rendered=render(backend.template, backend.variables(setup), spec.templates),
        workload=spec.workload,
        measure=spec.measure,
    )
    started = time.perf_counter()
    outcome = launch.probe(request, spec.deadline_seconds)
    assert outcome.kind == "ok", outcome
    return time.perf_counter() - started, outcome


def serve(
    launcher: LocalLauncher, number: int, setups: Sequence[Setup], spec: Spec, *, warmed: bool
) -> list[tuple[float, Outcome]]:
    """One launch that probes ``setups``."""
    launch = launcher.start(number)
    if warmed:
        probe(launch, setups[0], replace(spec, measure=WARMING))
    answers = [probe(launch, setup, spec) for setup in setups]
    launch.stop()
    return answers


def warm(launcher: LocalLauncher, setups: Sequence[Setup], spec: Spec) -> Cost:
    """All probes in one launch."""
    started = time.perf_counter()
    answers = serve(launcher, 0, setups, spec, warmed=True)
    return Cost(time.perf_counter() - started, answers)


def fresh(launcher: LocalLauncher, setups: Sequence[Setup], spec: Spec, *, warmed: bool) -> Cost:
    """A launch for every probe."""
    started = time.perf_counter()
    answers = []
    for number, setup in enumerate(setups):
        answers += serve(launcher, 1 + number, [setup], spec, warmed=warmed)
    return Cost(time.perf_counter() - started, answers)


def report(name: str, cost: Cost) -> None:
    """Prints one series."""
    print(f"{name}: {cost.probe_seconds:.2f} s a probe, {cost.answer_seconds:.2f} s to answer")
    for phase in PHASES:
        print(f"  {phase:11} {cost.a_probe(phase):6.2f} s")
    print(f"  {'control':11} {cost.control:6.2f} s")
    print(f"  timed steps are {cost.a_probe('timed') / cost.probe_seconds:.0%} of the wall time")


def compare(name: str, slow: Cost, warm: Cost) -> None:
    """Prints the ratio to a warm probe, with and without its share of the launch."""
    alone = slow.probe_seconds / warm.answer_seconds
    shared = slow.probe_seconds / warm.probe_seconds
    print(f"{name}: {alone:.1f} x a warm probe, {shared:.1f} x with its share of the launch")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=Path("sweeps/quickstart.yaml"))
    parser.add_argument("--setups", type=int, default=16)
    options = parser.parse_args()
    made = make_plan(options.file)
    spec = made.plan.spec
    setups = list(made.plan.space.valid())[: options.setups]
    with tempfile.TemporaryDirectory() as folder:
        environment = worker_environment(made.machine, made.ranks)
        launcher = LocalLauncher(made.ranks, environment, Path(folder))
        one = warm(launcher, setups, spec)
        each = fresh(launcher, setups, spec, warmed=True)
        cold = fresh(launcher, setups, spec, warmed=False)
    count = len(setups)
    report(f"{count} probes in one warm launch", one)
    report(f"{count} probes, each in a fresh launch, warmed as in a sweep", each)
    report(f"{count} probes, each in a fresh launch, not warmed", cold)
    compare("each fresh and warmed", each, one)
    compare("each fresh, not warmed", cold, one)


if __name__ == "__main__":
    main()
