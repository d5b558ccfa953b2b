"""From a setup and its text to the engine that trains it."""

from __future__ import annotations

from autotune.probe.ddp_engine import DdpRunner
from autotune.probe.deepspeed_engine import DeepSpeedRunner
from autotune.probe.engine import TIMED, Engine, Optimization
from autotune.probe.fsdp_engine import FsdpRunner
from autotune.probe.workload import Task
from autotune.setup import Setup


def build_engine(
    task: Task, setup: Setup, rendered: str, optimization: Optimization = TIMED
) -> Engine:
    """The engine of the setup's backend.

    Raises:
        RefusedSetupError: The library refuses the text, or reads another setup out of it.
    """
    if setup.backend == "deepspeed":
        return DeepSpeedRunner(task, setup, rendered, optimization)
    if setup.backend == "ddp":
        return DdpRunner(task, setup, rendered, optimization)
    return FsdpRunner(task, setup, rendered, optimization)
