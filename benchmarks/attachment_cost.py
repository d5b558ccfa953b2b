"""What the attachment costs a script, and whether what it measures is what the script sees.

Run as ``python benchmarks/attachment_cost.py [--rounds N] [--steps N] [--width N]``. A script that
times its own backward passes is started three times a round, in another order each round: plainly
by torchrun, plainly again, and under the attachment. Compared are the medians of the script's own
times over the steps in which the attachment does nothing but look on, and the median that the
attachment measured itself, each with those of the plain run of the same round. Prints the ratios
with a 95 % interval over the rounds, and that of the two plain runs: the noise floor. Before that,
it prints the time that the hooks add to a step of one number, where nothing hides it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import median

import torch

from autotune.bundle import bundle
from autotune.decide.stats import estimate
from autotune.launch import ScriptLauncher, describe_machine
from autotune.launch.describe import worker_environment
from autotune.launch.script import torchrun
from autotune.probe.attach.windows import How
from autotune.request import Measure, ProbeRequest
from autotune.workload import Script, Workload
from tests.attached import Bench, hooked
from tests.build import make_setup
from tests.scripts import SCRIPTS

CONFIDENCE = 0.95
RANKS = 2
WARM = 5  # steps of warm-up; the first one, whose wire is read, comes before them
SETUP = make_setup(backend="ddp", zero_stage=0, gradient_accumulation=1)


@dataclass(frozen=True, slots=True)
class Timed:
    """Median backward seconds of one run.

    Attributes:
        free: As the script sees them, over the steps of the end-to-end pass.
        synced: As the attachment measures them; of a plain run, the script's own over those steps.
    """

    free: float
    synced: float


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs the script, plainly or under the attachment.

    Attributes:
        environment: Of the processes.
        steps: In each of the timed and the end-to-end pass.
        width: Of the model.
        folder: For all that the runs leave.
    """

    environment: dict[str, str]
    steps: int
    width: int
    folder: Path

    @property
    def words(self) -> tuple[str, ...]:
        """The script with its arguments."""
        total = 1 + WARM + 2 * self.steps
        return ("timed.py", "--steps", str(total), "--width", str(self.width))

    def plain(self) -> Timed:
        """Torchrun alone."""
        done = subprocess.run(
            (*torchrun(RANKS), *self.words),
            env=self.environment,
            cwd=SCRIPTS,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        timed, free = self._parts(done.stdout)
        return Timed(free=median(free), synced=median(timed))

    def attached(self) -> Timed:
        """As in a sweep."""
        measure = Measure(
            warm_up_steps=WARM,
            warm_up_cap=WARM,
            timed_steps=self.steps,
            end_to_end_steps=self.steps,
        )
        script = Script(command=self.words, folder=str(SCRIPTS))
        work = Workload(model=script, micro_batch=64, gradient_accumulation=1)
        request = ProbeRequest(setup=SETUP, rendered=bundle({}), workload=work, measure=measure)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            launcher = ScriptLauncher(RANKS, self.environment, Path(folder), script)
            outcome = launcher.start(0).probe(request, 600)
            assert outcome.measurement is not None, outcome
            (log,) = Path(folder).glob("000/*/ranks/*/attempt_0/0/stdout.log")
            _, free = self._parts(log.read_text())
        return Timed(free=median(free), synced=median(outcome.measurement.backward_seconds))

    def _parts(self, printed: str) -> tuple[Sequence[float], Sequence[float]]:
        line = next(line for line in printed.splitlines() if line.startswith("{"))
        seconds = json.loads(line)["backward_seconds"][1 + WARM :]
        return seconds[: self.steps], seconds[self.steps :]


def play(runs: Runs, rounds: int) -> list[dict[str, Timed]]:
    """All rounds, each in another order."""
    kinds: dict[str, Callable[[], Timed]] = {
        "plain": runs.plain,
        "again": runs.plain,
        "attached": runs.attached,
    }
    orders = list(permutations(kinds))
    return [
        {name: kinds[name]() for name in orders[number % len(orders)]} for number in range(rounds)
    ]


def hook_seconds(rounds: int = 9, steps: int = 1000) -> float:
    """What the hooks add to a backward and a step while they only look on."""
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=1e-6)

    def once() -> float:
        start = time.perf_counter()
        (weight * 2).backward()
        optimizer.step()
        return time.perf_counter() - start

    added = []
    for _ in range(rounds):
        bare = median(once() for _ in range(steps))
        with hooked(Bench([How.PLAIN] * (steps + 1))):
            torch.optim.SGD([weight], lr=1e-6)  # the first one after them has its class hooked
            added.append(median(once() for _ in range(steps)) - bare)
    return median(added)


def report(name: str, ratios: Sequence[float]) -> None:
    """Prints a ratio with its interval."""
    found = estimate([math.log(ratio) for ratio in ratios], CONFIDENCE)
    low, high = found.interval
    print(f"{name:46} {found.ratio:.4f} [{low:.4f}, {high:.4f}]")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    print(f"the hooks add {1e6 * hook_seconds():.0f} us to a step")
    environment = worker_environment(describe_machine(), RANKS)
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(environment, options.steps, options.width, Path(folder))
        found = [
            (item["plain"], item["again"], item["attached"]) for item in play(runs, options.rounds)
        ]
    usual = median(plain.free for plain, _, _ in found)
    print(f"{len(found)} rounds; a backward takes {1e3 * usual:.2f} ms")
    looked_on = [attached.free / plain.free for plain, _, attached in found]
    report("script under the attachment, by its own clock", looked_on)
    measured = [attached.synced / plain.synced for plain, _, attached in found]
    report("as the attachment measures it", measured)
    report(
        "noise floor: plain against plain", [again.free / plain.free for plain, again, _ in found]
    )


if __name__ == "__main__":
    main()
