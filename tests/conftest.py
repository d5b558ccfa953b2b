"""Fixtures that start real workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

from autotune.backends import backend_of
from autotune.launch import Launch, LocalLauncher, Machine, describe_machine
from autotune.launch.describe import worker_environment
from autotune.render import render
from autotune.request import Measure, ProbeRequest
from autotune.setup import Setup
from autotune.workload import PythonFactory, Workload
from tests.build import TINY

# `make test` draws the same examples each time, `make test-all` new ones.
settings.register_profile("steady", derandomize=True)
settings.register_profile("random", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

QUICK = Measure(warm_up_steps=1, warm_up_cap=1, timed_steps=2, end_to_end_steps=1)
WORKLOADS = Path(__file__).parent / "workloads"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden from today's output"
    )


@pytest.fixture(scope="session")
def machine() -> Machine:
    return describe_machine()


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest) -> None:
    """Leaves out what this device cannot compute: DeepSpeed refuses fp16 without its kernels."""
    if request.node.get_closest_marker("fp16") is not None:
        machine: Machine = request.getfixturevalue("machine")
        if machine.facts["fp16"] == "none":
            pytest.skip("no fp16 kernels here")


@pytest.fixture
def launcher(machine: Machine, tmp_path: Path) -> LocalLauncher:
    return LocalLauncher(2, worker_environment(machine, 2), tmp_path / "launches")


@pytest.fixture
def launch(launcher: LocalLauncher) -> Iterator[Launch]:
    started = launcher.start(0)
    yield started
    started.stop()


def marked(setup: Setup) -> ParameterSet:
    """A setup as a parameter that is left out where its kernels are missing."""
    marks = [pytest.mark.fp16] if setup.precision == "fp16" else []
    return pytest.param(setup, id=setup.key, marks=marks)


def request_for(
    setup: Setup,
    *,
    workload: Workload = TINY,
    measure: Measure = QUICK,
    rendered: str | None = None,
) -> ProbeRequest:
    backend = backend_of(setup)
    text = (
        render(backend.template, backend.variables(setup), None) if rendered is None else rendered
    )
    return ProbeRequest(setup=setup, rendered=text, workload=workload, measure=measure)


def hostile(how: str = "", *, factory: str = "factory") -> Workload:
    args = {"how": how} if how else {}
    model = PythonFactory(path=f"hostile:{factory}", args=args, folder=str(WORKLOADS))
    return Workload(model=model, micro_batch=2, gradient_accumulation=2)
