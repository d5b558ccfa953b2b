"""Puts the rooms together for the command line."""

from autotune.wiring.exports import (
    ALL,
    Verified,
    export_subject,
    named_subject,
    run_subject,
    verify,
    write_all,
)
from autotune.wiring.noise import describe_noise
from autotune.wiring.plan import Made, describe_plan, make_plan
from autotune.wiring.results import open_run, result_of, write_result
from autotune.wiring.runs import Session, make_confirmation, make_replay, make_sweep

__all__ = [
    "ALL",
    "Made",
    "Session",
    "Verified",
    "describe_noise",
    "describe_plan",
    "export_subject",
    "make_confirmation",
    "make_plan",
    "make_replay",
    "make_sweep",
    "named_subject",
    "open_run",
    "result_of",
    "run_subject",
    "verify",
    "write_all",
    "write_result",
]
