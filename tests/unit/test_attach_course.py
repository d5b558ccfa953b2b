"""What is done with the windows of a script, without any script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from autotune.outcome import Measurement, Outcome
from autotune.probe.attach.course import Course
from autotune.probe.attach.windows import How, Window
from autotune.probe.control import Alone
from autotune.probe.finding import Finding
from autotune.probe.line import Line
from autotune.probe.pace import Stopwatch
from autotune.probe.wire import WireTap
from autotune.probe.workload import Rank
from autotune.request import Measure, ProbeRequest
from autotune.setup import Setup
from tests.build import TINY, make_setup

MEASURE = Measure(warm_up_steps=2, warm_up_cap=6, timed_steps=4, end_to_end_steps=2, burst_steps=2)
ELEMENTS = 100
Seconds = Sequence[float]


@dataclass(slots=True)
class Probe:
    """One course, with a script of our own making."""

    setup: Setup = field(default_factory=lambda: make_setup(gradient_accumulation=1))
    measure: Measure = MEASURE
    ranks: int = 2
    prune: str | None = None
    losses: bool = True
    asked: list[tuple[int, Seconds]] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    hows: list[How] = field(default_factory=list)
    tap: WireTap = field(default_factory=WireTap)

    def course(self) -> Course:
        probe = self

        class Answering(Line):
            def announce(self, phase: str) -> None:
                probe.phases.append(phase)

            def ask(self, burst: int, backward_seconds: Sequence[float]) -> str | None:
                probe.asked.append((burst, backward_seconds))
                return probe.prune if burst else None

        line = Answering(Alone(), None)
        request = ProbeRequest(setup=self.setup, rendered="", workload=TINY, measure=self.measure)
        place = Rank(rank=0, world_size=self.ranks, device=torch.device("cpu"))
        watch = Stopwatch(line.announce)
        return Course(request, place, line, self.tap, watch, losses=self.losses)

    def run(self, backward: Seconds = (1.0,), **changes: Any) -> Outcome:
        """The outcome; window i takes the i-th of the seconds, the last ones the last."""
        course = self.course().run()
        how = next(course)
        for number in range(100):
            self.hows.append(how)
            seconds = backward[min(number, len(backward) - 1)]
            made: dict[str, Any] = {
                "losses": [torch.tensor(float(number))],
                "outcomes": [True],
                "norms": [None if how is How.PLAIN else 10.0 + number],
                "backwards": 1,
                "elements": ELEMENTS,
                **changes,
            }
            window = Window(how, rest=2.0, backward=seconds, step=0.5, **made)
            try:
                how = course.send(window)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
        raise AssertionError("the course has no end")

    def reduced(self, elements: int = ELEMENTS, dtype: torch.dtype = torch.float32) -> Probe:
        """With so many gradient elements on the wire."""
        self.tap._note("allreduce_", ([torch.zeros(elements, dtype=dtype)],))
        return self


def measured(outcome: Outcome) -> Measurement:
    assert outcome.kind == "ok", outcome.reason
    assert outcome.measurement is not None
    return outcome.measurement


def test_a_probe_taps_warms_up_times_and_goes_freely() -> None:
    probe = Probe().reduced()
    found = measured(probe.run())
    assert probe.hows == [How.TAPPED] + [How.TIMED] * (2 + 4) + [How.PLAIN] * 2
    assert probe.phases == ["wire", "warm_up", "timed", "end_to_end"]
    assert found.backward_seconds == (1.0,) * 4
    assert found.forward_seconds == (2.0,) * 4
    assert found.step_seconds == (0.5,) * 4
    assert found.losses == (3.0, 4.0, 5.0, 6.0)
    assert found.trained_losses == tuple(float(number) for number in range(9))
    assert found.gradient_norms == (*(10.0 + number for number in range(7)), None, None)
    assert (found.warm_up_steps, found.trained_steps, found.end_to_end_steps) == (3, 9, 2)
    assert found.tokens_per_step == 2 * 1 * 2
    assert found.steady
    assert [item.dtype for item in found.wire] == ["fp32"]


def test_the_warm_up_goes_on_until_it_is_steady_and_no_longer_than_its_cap() -> None:
    settling = measured(Probe().reduced().run((1.0, 9.0, 5.0, 3.0, 1.0)))
    assert settling.warm_up_steps == 1 + 6
    never = measured(Probe().reduced().run(tuple(2.0**number for number in range(9))))
    assert (never.warm_up_steps, never.steady) == (1 + 6, False)


def test_the_controller_is_asked_after_each_burst_but_the_last_and_may_stop_the_probe() -> None:
    probe = Probe().reduced()
    measured(probe.run((9.0, 1.0, 1.0, 2.0, 3.0, 4.0, 5.0)))
    assert probe.asked == [(0, [1.0, 1.0]), (1, [2.0, 3.0])]
    stopped = Probe(prune="too slow").reduced().run()
    assert (stopped.kind, stopped.reason) == ("pruned", "too slow")
    assert stopped.saved_seconds == pytest.approx((2 + 2) * (2.0 + 1.0 + 0.5))


def test_a_gradient_that_is_not_reduced_is_inert() -> None:
    outcome = Probe().reduced(ELEMENTS - 1).run()
    assert outcome.kind == "inert"
    assert outcome.reason is not None
    assert outcome.reason.startswith("Only 99 of 100 gradient elements")


def test_another_dtype_on_the_wire_is_inert() -> None:
    bf16 = make_setup(gradient_accumulation=1, precision="bf16", grad_comm_dtype="bf16")
    outcome = Probe(setup=bf16).reduced().run()
    assert outcome.kind == "inert"
    assert outcome.reason is not None
    assert "asks for bf16 gradients; on the wire were 400 bytes of fp32" in outcome.reason


def test_what_else_a_script_reduces_is_no_matter() -> None:
    bf16 = make_setup(gradient_accumulation=1, precision="bf16", grad_comm_dtype="bf16")
    probe = Probe(setup=bf16).reduced(dtype=torch.bfloat16).reduced(10)
    assert probe.run().kind == "ok"


def test_a_script_that_ignores_the_accumulation_is_inert() -> None:
    four = make_setup(gradient_accumulation=4)
    outcome = Probe(setup=four).reduced().run(backwards=2)
    assert outcome.kind == "inert"
    assert outcome.reason is not None
    assert "asks for 4 micro-batches" in outcome.reason
    assert "called backward 2 times" in outcome.reason
    assert Probe(setup=four).reduced().run(backwards=8).kind == "ok"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"losses": [torch.tensor(float("nan"))]}, "The loss was not finite"),
        ({"outcomes": [False]}, "Every timed step was skipped"),
    ],
)
def test_a_script_that_does_not_train_is_unsafe(changes: dict[str, Any], reason: str) -> None:
    outcome = Probe().reduced().run(**changes)
    assert outcome.kind == "unsafe"
    assert outcome.reason is not None
    assert reason in outcome.reason


def test_skipped_steps_are_counted_and_have_no_norm() -> None:
    skipped = [torch.tensor(1.0)]
    outcome = Probe().reduced().run(outcomes=skipped)
    assert outcome.kind == "unsafe"
    assert outcome.measurement is not None
    assert outcome.measurement.trained_skips == outcome.measurement.trained_steps == 9
    assert set(outcome.measurement.gradient_norms) == {None}


def test_without_losses_nothing_is_said_of_them() -> None:
    found = measured(Probe(losses=False).reduced().run())
    assert (found.trained_losses, found.gradient_norms) == ((), ())


def test_one_rank_has_no_wire() -> None:
    assert Probe(ranks=1).run().kind == "ok"


def test_a_library_that_gives_up_is_unsafe() -> None:
    outcome = Probe().course().outcome(Finding(refused="cannot go on"))
    assert (outcome.kind, outcome.reason) == ("unsafe", "cannot go on")


def test_a_probe_without_bursts_asks_nobody() -> None:
    probe = Probe(measure=replace(MEASURE, burst_steps=0)).reduced()
    measured(probe.run())
    assert probe.asked == []
