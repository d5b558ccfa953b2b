"""A sweep of a script: every probe is a run of it, and its own losses are what the gates judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.events import Event, Judged
from autotune.launch import Judge, Machine
from autotune.numerics.findings import Missing, Trained
from autotune.outcome import Measurement, Outcome
from autotune.readings import Reading
from autotune.report import build_result
from autotune.request import ProbeRequest, ReadingRequest
from autotune.search import Store
from autotune.setup import Setup
from autotune.spec import read_spec
from autotune.sweep import Plan, Sweep
from autotune.wiring.fingerprint import fingerprint
from autotune.wiring.plan import plan_of
from autotune.wiring.runs import _about
from tests.build import make_measurement
from tests.scripted import FACTS

FILE = """
version: 1
name: mine
workload:
  script: {command: 'train.py {deepspeed_config}'}
  micro_batch: 2
  gradient_accumulation: 2
launch: {local: {ranks: 2}}
space: {precision: [fp32, bf16], grad_comm_dtype: fp32, zero_stage: 1, bucket_bytes: 25e6}
baseline: {precision: fp32, zero_stage: 1, grad_comm_dtype: fp32, bucket_bytes: 25e6}
budget: {minutes: 60}
"""
STEPS = 12
Answer = Callable[[Setup], Outcome]


def trained(seconds: float, norm: float = 1.0, notes: tuple[str, ...] = ()) -> Outcome:
    measured: Measurement = replace(
        make_measurement(seconds, end_to_end=5 * seconds),
        trained_losses=tuple(6.0 - 0.001 * step for step in range(STEPS)),
        gradient_norms=(norm,) * STEPS,
    )
    return Outcome(kind="ok", measurement=measured, notes=notes)


@dataclass
class Runs:
    """Stands for `ScriptLauncher`: nothing waits between the probes."""

    answer: Answer
    ranks: int = 2
    fresh: bool = True
    alive: bool = True
    others_busy: float | None = None
    asked: list[Setup] = field(default_factory=list)
    seconds: float = 0.0

    def clock(self) -> float:
        return self.seconds

    def start(self, number: int, *, alone: bool = False) -> Runs:
        return self

    def probe(
        self, request: ProbeRequest, deadline_seconds: float, judge: Judge | None = None
    ) -> Outcome:
        self.seconds += 1
        self.asked.append(request.setup)
        return self.answer(request.setup)

    def read(self, request: ReadingRequest, deadline_seconds: float) -> Reading | Outcome:
        raise AssertionError(f"a script gives no reading of {request.ask}")

    def stop(self) -> None:
        pass

    kill = stop


@dataclass
class World:
    """One sweep of the script, over."""

    store: Store
    runs: Runs
    events: list[Event]
    plan: Plan

    def told(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Judged)]


def swept(folder: Path, answer: Answer, file: str = FILE) -> World:
    (folder / "train.py").touch()
    (folder / "sweep.yaml").write_text(file)
    made = plan_of(read_spec(folder / "sweep.yaml"), Machine(FACTS))
    store, runs, events = Store(None, create=True), Runs(answer), list[Event]()
    store.describe(_about(made, fingerprint(made)))
    assert Sweep(made.plan, store, runs, events.append).run() == "decided"
    return World(store, runs, events, made.plan)


def faster_in_bf16(setup: Setup) -> Outcome:
    return trained(0.1 if setup.precision == "fp32" else 0.05)


def test_a_faster_setup_that_trains_like_the_baseline_is_confirmed(tmp_path: Path) -> None:
    world = swept(tmp_path, faster_in_bf16)
    about = world.store.about
    result = build_result("mine", world.store.probes(), about, world.store.findings())
    assert result["verdict"] == "confirmed"
    assert result["winner"].startswith("deepspeed.z1.bf16")
    assert any("It passes all 4 gates." in text for text in result["numerics"]["words"])


def test_one_throw_away_run_finds_the_cold_caches_and_no_other_launch_is_warmed(
    tmp_path: Path,
) -> None:
    world = swept(tmp_path, faster_in_bf16)
    assert len(world.runs.asked) == len(world.store.probes()) + 1


def test_a_gradient_that_is_scaled_wrongly_never_wins(tmp_path: Path) -> None:
    def lying(setup: Setup) -> Outcome:
        return trained(0.1) if setup.precision == "fp32" else trained(0.05, norm=2.0**-16)

    world = swept(tmp_path, lying)
    result = build_result("mine", world.store.probes(), world.store.about, world.store.findings())
    assert result["winner"] == result["baseline"]
    assert any("unsafe, gradient-norm" in text for text in world.told())


def test_a_narrow_baseline_is_compared_with_one_run_in_fp32(tmp_path: Path) -> None:
    file = (
        FILE.replace("precision: [fp32, bf16]", "precision: bf16")
        .replace(
            "baseline: {precision: fp32, zero_stage: 1", "baseline: {precision: bf16, zero_stage: 1"
        )
        .replace(
            "zero_stage: 1, bucket_bytes: 25e6}\nbase",
            "zero_stage: [1, 2], bucket_bytes: 25e6}\nbase",
        )
    )
    world = swept(tmp_path, faster_in_bf16, file)
    assert [setup.precision for setup in world.runs.asked].count("fp32") == 1
    found = world.store.findings()
    references = {item.training.reference for item in found.values() if isinstance(item, Trained)}
    assert all(".fp32.wire-fp32" in key for key in references)


def test_losses_that_nobody_could_read_are_missing_and_said(tmp_path: Path) -> None:
    def silent(setup: Setup) -> Outcome:
        return Outcome(kind="ok", measurement=make_measurement(0.1))

    world = swept(tmp_path, silent)
    missing = [item for item in world.store.findings().values() if isinstance(item, Missing)]
    assert missing
    assert any("did not tell the losses" in text for text in world.told())


def test_where_files_went_is_said_once_and_kept(tmp_path: Path) -> None:
    def noted(setup: Setup) -> Outcome:
        return replace(faster_in_bf16(setup), notes=("Files went elsewhere.",))

    world = swept(tmp_path, noted)
    assert world.told().count("Files went elsewhere.") == 1
    assert world.store.about["notes"] == ["Files went elsewhere."]
