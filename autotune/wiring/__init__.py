"""Puts the rooms together for the command line."""

from autotune.wiring.noise import describe_noise
from autotune.wiring.plan import Made, describe_plan, make_plan
from autotune.wiring.results import export_run, open_run, result_of, write_result
from autotune.wiring.runs import Session, make_confirmation, make_replay, make_sweep

__all__ = [
    "Made",
    "Session",
    "describe_noise",
    "describe_plan",
    "export_run",
    "make_confirmation",
    "make_plan",
    "make_replay",
    "make_sweep",
    "open_run",
    "result_of",
    "write_result",
]
