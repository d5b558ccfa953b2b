"""A tiny controller that runs a script under the attachment."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.launch import Judge, Machine
from autotune.launch.describe import worker_environment
from autotune.launch.local import Launch, torchrun_tail
from autotune.launch.scratch import make_scratch
from autotune.outcome import Measurement, Outcome
from autotune.request import Measure, ProbeRequest
from autotune.setup import Setup
from autotune.workload import Script, Workload

SCRIPTS = Path(__file__).parent / "workloads" / "scripts"
SHORT = Measure(warm_up_steps=1, warm_up_cap=2, timed_steps=3, end_to_end_steps=2)
SHORT_STEPS = 1 + 2 + 3 + 2


@dataclass(frozen=True, slots=True)
class Controller:
    """Runs scripts as a sweep does.

    Attributes:
        machine: This one.
        folder: For everything that a run leaves.
        home: The user's folder.
        ranks: Processes.
    """

    machine: Machine
    folder: Path
    home: Path = SCRIPTS
    ranks: int = 2

    @property
    def launch_folder(self) -> Path:
        """Of the only run."""
        return self.folder / "launch"

    @property
    def scratch(self) -> Path:
        """Where the script runs."""
        return self.launch_folder / "scratch"

    def run(
        self,
        *words: str,
        setup: Setup,
        measure: Measure = SHORT,
        judge: Judge | None = None,
        seconds: float = 60,
    ) -> Outcome:
        """One probe of the script."""
        self.launch_folder.mkdir(parents=True)
        make_scratch(self.home, self.scratch)
        model = Script(command=words, folder=str(self.home))
        work = Workload(model=model, micro_batch=2, gradient_accumulation=1)
        request = ProbeRequest(setup=setup, rendered="", workload=work, measure=measure)
        orders = {
            "request": asdict(request),
            "home": str(self.home),
            "scratch": str(self.scratch),
            "install": [],
            "seed": 0,
            "losses": True,
        }
        path = self.launch_folder / "attach.json"
        path.write_text(json.dumps(orders))
        environment = {
            **worker_environment(self.machine, self.ranks),
            "AUTOTUNE_ATTACH": str(path),
        }
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
        tail = torchrun_tail(self.launch_folder, "attach", "--", *words)
        command = (*torchrun, "--nproc-per-node", str(self.ranks), *tail)
        launch = Launch([command], environment, self.launch_folder, self.scratch)
        try:
            return launch.probe(request, seconds, judge)
        finally:
            launch.stop()


def measured(outcome: Outcome) -> Measurement:
    assert outcome.kind == "ok", (outcome.reason, outcome.log)
    assert outcome.measurement is not None
    return outcome.measurement
