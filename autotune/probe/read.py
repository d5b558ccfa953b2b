"""Answers a request for a reading."""

from __future__ import annotations

from autotune.outcome import Outcome
from autotune.probe.control import Control
from autotune.probe.engine import RefusedSetupError
from autotune.probe.exposure import read_exposure
from autotune.probe.gradient import Shelf, read_gradient
from autotune.probe.line import Line
from autotune.probe.sample import read_sample
from autotune.probe.trace import read_trace
from autotune.probe.workload import Rank
from autotune.readings import Reading
from autotune.request import ReadingRequest


def read(
    request: ReadingRequest, place: Rank, control: Control, line: Line, shelf: Shelf
) -> Reading | Outcome:
    """The reading, or ``invalid`` where the library refuses the setup.

    Whatever else goes wrong is raised, and costs the launch, as in a probe.
    """
    try:
        if request.ask == "gradient":
            return read_gradient(request, place, control, line, shelf)
        if request.ask == "trace":
            return read_trace(request, place, control, line)
        if request.ask == "sample":
            return read_sample(request, place, control, line)
        return read_exposure(request, place, control, line)
    except RefusedSetupError as error:
        return Outcome(kind="invalid", reason=str(error))
