import math
import random
from dataclasses import replace

import pytest

from autotune.launch.protocol import Launch, Launcher
from autotune.launch.replay import Answer, Recorded, ReplayLaunch, ReplayLauncher
from autotune.outcome import Outcome, OutcomeKind, Probe
from autotune.request import Measure, ProbeRequest
from autotune.setup import Setup
from tests.build import TINY, make_measurement, make_probe, make_setup

BASELINE = make_setup()
A = make_setup(bucket_bytes=1_000)


class Coin:
    """Levels and speeds at random; takes 3 seconds a probe and 20 a launch."""

    launch_seconds = 20.0

    def __init__(self, kind: OutcomeKind = "ok") -> None:
        self.kind = kind

    def level(self, chance: random.Random) -> float:
        return chance.gauss(0, 1)

    def answer(self, setup: Setup, level: float, chance: random.Random) -> Answer:
        measured = make_measurement(math.exp(-level - chance.gauss(0, 0.1)))
        return Answer(Outcome(kind=self.kind, measurement=measured), 3.0)


def ask(launch: ReplayLaunch, setup: Setup = BASELINE) -> Outcome:
    request = ProbeRequest(setup=setup, rendered="", workload=TINY, measure=Measure())
    return launch.probe(request, 60.0)


def log_speed(outcome: Outcome) -> float:
    assert outcome.measurement is not None
    return math.log(outcome.measurement.median_backward_tokens_per_second)


def recorded() -> list[Probe]:
    """Two launches, the second twice as fast, each with a setup 1.5 times the baseline."""
    probes = []
    for launch, seconds in enumerate((0.4, 0.2)):
        number = 2 * launch
        probes.append(make_probe(number, BASELINE, backward=seconds, launch=launch, baseline=True))
        probes.append(make_probe(number + 1, A, backward=seconds / 1.5, launch=launch))
    return probes


def test_it_is_a_launcher() -> None:
    launcher: Launcher = ReplayLauncher(Coin(), ranks=4)
    launch: Launch = launcher.start(0)
    assert launcher.ranks == 4
    assert (launch.alive, launch.others_busy) == (True, None)


def test_the_same_launch_number_gives_the_same_answers() -> None:
    launcher = ReplayLauncher(Coin(), seed=1)
    first = [log_speed(ask(launch)) for launch in [launcher.start(5)] for _ in range(4)]
    launcher.start(6)
    again = [log_speed(ask(launch)) for launch in [launcher.start(5)] for _ in range(4)]
    assert first == again
    assert len(set(first)) == 4


def test_another_number_and_another_seed_give_others() -> None:
    launcher = ReplayLauncher(Coin(), seed=1)
    values = {
        log_speed(ask(launcher.start(5))),
        log_speed(ask(launcher.start(6))),
        log_speed(ask(ReplayLauncher(Coin(), seed=2).start(5))),
    }
    assert len(values) == 3


def test_the_clock_is_virtual_and_counts_launches_and_probes() -> None:
    launcher = ReplayLauncher(Coin())
    assert launcher.clock() == 0.0
    launch = launcher.start(0)
    assert launcher.clock() == 20.0
    ask(launch)
    ask(launch)
    assert launcher.clock() == 26.0
    launcher.pass_time(1.5)
    assert launcher.clock() == 27.5


@pytest.mark.parametrize("kind", ["crash", "hang", "oom"])
def test_a_lost_launch_is_lost_in_the_replay_too(kind: OutcomeKind) -> None:
    launch = ReplayLauncher(Coin(kind)).start(0)
    assert ask(launch).kind == kind
    assert not launch.alive


@pytest.mark.parametrize("kind", ["ok", "invalid", "inert", "unsafe"])
def test_other_failures_leave_the_launch_alive(kind: OutcomeKind) -> None:
    launch = ReplayLauncher(Coin(kind)).start(0)
    ask(launch)
    assert launch.alive


def test_a_stopped_and_a_killed_launch_are_not_alive() -> None:
    stopped, killed = (ReplayLauncher(Coin()).start(number) for number in (0, 1))
    stopped.stop()
    killed.kill()
    assert not stopped.alive
    assert not killed.alive


def test_the_level_of_a_replayed_launch_shifts_all_its_probes_alike() -> None:
    launcher = ReplayLauncher(Recorded(recorded(), 20.0))
    speeds = set()
    for number in range(40):
        launch = launcher.start(number)
        baseline = log_speed(ask(launch))
        for _ in range(3):
            assert log_speed(ask(launch, A)) - baseline == pytest.approx(math.log(1.5))
        speeds.add(round(math.exp(baseline)))
    assert speeds == {2_500, 5_000}  # those of the two recorded launches


def test_a_replay_takes_the_time_that_the_records_took() -> None:
    launcher = ReplayLauncher(Recorded([replace(recorded()[0], wall_seconds=7.0)], 20.0))
    ask(launcher.start(0))
    assert launcher.clock() == 27.0


def test_every_time_of_an_answer_is_moved_by_the_same_factor() -> None:
    """The record's own level is 2500 tokens a second; at half of it all takes twice as long."""
    source = Recorded([make_probe(0, BASELINE, backward=0.4, baseline=True)], 0.0)
    unchanged = source.answer(BASELINE, math.log(2_500), random.Random(0)).outcome.measurement
    moved = source.answer(BASELINE, math.log(1_250), random.Random(0)).outcome.measurement
    assert unchanged is not None
    assert moved is not None
    assert unchanged.backward_seconds == pytest.approx((0.4,) * 4)
    for name in ("forward_seconds", "backward_seconds", "step_seconds"):
        doubled = tuple(2 * value for value in getattr(unchanged, name))
        assert getattr(moved, name) == pytest.approx(doubled)
    assert moved.end_to_end_seconds == pytest.approx(2 * unchanged.end_to_end_seconds)
    assert moved.peak_memory_bytes == unchanged.peak_memory_bytes


def test_recorded_failures_are_answers_too() -> None:
    source = Recorded([*recorded()[:1], make_probe(1, A, kind="inert")], 0.0)
    answer = source.answer(A, 0.0, random.Random(0))
    assert (answer.outcome.kind, answer.outcome.reason) == ("inert", "because")
    assert answer.seconds == 2.0


def test_a_setup_without_a_record_is_invalid_and_takes_no_time() -> None:
    answer = Recorded(recorded(), 0.0).answer(make_setup(zero_stage=3), 0.0, random.Random(0))
    assert answer.outcome.kind == "invalid"
    assert answer.outcome.reason == "The run that is replayed has no record of this setup."
    assert answer.seconds == 0.0


def test_all_records_of_a_setup_are_drawn() -> None:
    probes = [
        make_probe(0, BASELINE, backward=0.1, baseline=True),
        make_probe(1, A, backward=0.1),
        make_probe(2, A, backward=0.05),
    ]
    launch = ReplayLauncher(Recorded(probes, 0.0)).start(0)
    drawn = {round(math.exp(log_speed(ask(launch, A)))) for _ in range(30)}
    assert drawn == {10_000, 20_000}


def test_a_run_without_any_baseline_is_replayed_at_its_own_speeds() -> None:
    source = Recorded([make_probe(0, A, backward=0.1)], 0.0)
    launch = ReplayLauncher(source).start(0)
    assert log_speed(ask(launch, A)) == pytest.approx(math.log(10_000))
