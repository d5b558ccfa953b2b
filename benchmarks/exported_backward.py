"""Whether an exported setup, started again as a user does it, is as fast as its probe was.

Run as ``python benchmarks/exported_backward.py [--rounds N] [--steps N] [KIND...]``, with kinds of
``examples/``. Each round measures the script three times, in another order each round: as a probe
of a sweep, as a probe again, and with the files that ``export`` writes for a run of it and the
line that its notes ask for. Prints the ratios of the median backward seconds with a 95 % interval
over the rounds; that of the two probes is the noise floor.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from statistics import median

from autotune.backends import backend_of
from autotune.bundle import bundle, unbundle
from autotune.decide.stats import estimate
from autotune.export import Exported, Unmeasured, export
from autotune.export.script import words
from autotune.export.subject import Subject
from autotune.launch import Machine, ScriptLauncher, describe_machine
from autotune.launch.describe import worker_environment
from autotune.render import HERE
from autotune.request import Measure, ProbeRequest
from autotune.setup import Setup
from autotune.spec import read_spec
from autotune.sweep import Plan
from autotune.sweep.rendering import render_setup
from autotune.wiring.plan import plan_of
from autotune.workload import Script

EXAMPLES = Path(__file__).parents[1] / "examples"
CONFIDENCE = 0.95
RANKS = 2
WARM = 5
MODULES = ("fsdp_setup", "ddp_setup")
AFTER = "from __future__ import annotations\n"


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of script with one setup.

    Attributes:
        plan: Of its sweep file.
        setup: What is compared.
        machine: This one.
        measure: How long.
        folder: For all that the runs leave.
        relaunched: The script as the user starts it after the export.
        files: Files that its launcher is given, by name.
    """

    plan: Plan
    setup: Setup
    machine: Machine
    measure: Measure
    folder: Path
    relaunched: Script
    files: dict[str, str]

    def probe(self) -> float:
        """Median backward seconds as in a sweep."""
        assert self.plan.script is not None
        return self._run(self.plan.script, render_setup(self.plan, self.setup))

    def relaunch(self) -> float:
        """Median backward seconds with what was exported."""
        return self._run(self.relaunched, bundle(self.files))

    def _run(self, script: Script, rendered: str) -> float:
        work = replace(self.plan.spec.workload, model=script)
        request = ProbeRequest(
            setup=self.setup, rendered=rendered, workload=work, measure=self.measure
        )
        environment = worker_environment(self.machine, RANKS)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            launcher = ScriptLauncher(RANKS, environment, Path(folder), script)
            outcome = launcher.start(0).probe(request, 600)
        assert outcome.measurement is not None, outcome
        return median(outcome.measurement.backward_seconds)


def make_case(kind: str, machine: Machine, measure: Measure, folder: Path) -> Case:
    """The baseline of a kind's sweep file with bf16 gradients on the wire, exported."""
    plan = plan_of(read_spec(EXAMPLES / f"{kind}.yaml"), machine).plan
    setup = replace(plan.baseline, grad_comm_dtype="bf16")
    script = plan.script
    assert script is not None
    home = folder / kind
    shutil.copytree(EXAMPLES, home, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    texts = unbundle(render_setup(plan, setup))
    name = backend_of(setup).file_name
    subject = Subject(
        setup=setup,
        config=texts.pop(name),
        provenance=Unmeasured(setup.key),
        others=texts,
        script=script,
    )
    exported = export(subject, "launch")
    install(exported, home, script.command[0])
    own = [word.replace(HERE, str(home)) for word in words(script, setup)]
    files = exported.files if script.launcher == "accelerate" else {}
    given = {name: text for name, text in files.items() if name.endswith((".yaml", "config.json"))}
    relaunched = replace(script, command=tuple(own), folder=str(home))
    return Case(plan, setup, machine, measure, folder, relaunched, given)


def install(exported: Exported, home: Path, script: str) -> None:
    """Puts the files beside the script, and the line into it that the notes ask for."""
    for name, text in exported.files.items():
        (home / name).write_text(text, encoding="utf-8")
    for module in MODULES:
        if f"{module}.py" in exported.files:
            path = home / script
            line = f"import {module}; {module}.install()\n"
            path.write_text(path.read_text().replace(AFTER, AFTER + line, 1))


def play(case: Case, rounds: int) -> list[dict[str, float]]:
    """All rounds, each in another order."""
    kinds: dict[str, Callable[[], float]] = {
        "probe": case.probe,
        "again": case.probe,
        "relaunch": case.relaunch,
    }
    orders = list(permutations(kinds))
    return [
        {name: kinds[name]() for name in orders[number % len(orders)]} for number in range(rounds)
    ]


def report(name: str, ratios: Sequence[float]) -> None:
    """Prints a ratio with its interval."""
    found = estimate([math.log(ratio) for ratio in ratios], CONFIDENCE)
    low, high = found.interval
    print(f"  {name:32} {found.ratio:.4f} [{low:.4f}, {high:.4f}]")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", default=["deepspeed", "accelerate", "fsdp2"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    machine = describe_machine()
    measure = Measure(
        warm_up_steps=WARM, warm_up_cap=WARM, timed_steps=options.steps, end_to_end_steps=1
    )
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kinds:
            case = make_case(kind, machine, measure, Path(folder))
            found = play(case, options.rounds)
            usual = 1e3 * median(item["probe"] for item in found)
            print(f"{kind}: {case.setup.key}, {len(found)} rounds, a backward takes {usual:.2f} ms")
            report("exported and relaunched", [x["relaunch"] / x["probe"] for x in found])
            report("noise floor: probe against probe", [x["again"] / x["probe"] for x in found])


if __name__ == "__main__":
    main()
