"""fp16 training whose loss scale is found by trying, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from autotune.probe import memory
from autotune.probe.control import Control
from autotune.probe.engine import TORCH_DTYPES
from autotune.probe.gradient import shape_of
from autotune.probe.ground import draw_batches
from autotune.probe.line import Line
from autotune.probe.reference import Reference
from autotune.probe.workload import Rank, build_task
from autotune.readings import LEAST_POWER, MOST_POWER, ScaleTrace
from autotune.request import ReadingRequest

FIRST_POWER = 16  # where the search for the first step begins: the default of DeepSpeed and torch
LOWEST_BIN, BINS = -60, 80  # of log2 |g|
Parts = Mapping[str, Tensor]


@dataclass(slots=True)
class Histogram:
    """Gradient elements by floor(log2 |g|), and the sum of their squares."""

    counts: Tensor = field(default_factory=lambda: torch.zeros(BINS, dtype=torch.float64))
    squares: Tensor = field(default_factory=lambda: torch.zeros(BINS, dtype=torch.float64))
    largest: float = 0.0

    def add(self, gradient: Parts) -> None:
        """Counts one step's gradient; elements outside the bins count in the outermost ones."""
        self.largest = 0.0
        for part in gradient.values():
            values = part.double().abs().flatten().cpu()
            values = values[values > 0]
            if values.numel():
                bins = (values.log2().floor().long() - LOWEST_BIN).clamp(0, BINS - 1)
                self.counts += torch.bincount(bins, minlength=BINS)
                self.squares += torch.bincount(bins, weights=values**2, minlength=BINS)
                self.largest = max(self.largest, float(values.max()))


def read_trace(request: ReadingRequest, place: Rank, control: Control, line: Line) -> ScaleTrace:
    """Trains in fp16 with fp32 masters; every rank calls it and gets the same trace.

    The scale of each step is the largest power of two whose backward is finite on every rank.
    An overflow in between, such as of an activation's gradient, counts as one in the weights'
    gradients does, because it shows there.
    """
    line.announce("trace")
    shape = shape_of(request)
    task = build_task(request.workload, shape.micro_batch, place)
    batches = draw_batches(task, shape, request.steps)
    wire = TORCH_DTYPES[request.setup.grad_comm_dtype]
    reference = Reference(task, place, control, torch.float16, wire)
    optimizer = reference.optimizer(request.learning_rate)
    powers: list[int] = []
    largest: list[float] = []
    histogram = Histogram()
    for number in range(request.steps):
        start = number * shape.accumulation % len(batches)
        step = batches[start : start + shape.accumulation]
        power = _climb(reference, step, powers[-1] if powers else FIRST_POWER, control)
        powers.append(power)
        if power >= LEAST_POWER:
            histogram.add(reference.gradients())
            reference.clip()
            optimizer.step()
        largest.append(histogram.largest if power >= LEAST_POWER else 0.0)
    del reference, optimizer, task
    memory.release(place.device)
    return _whole(powers, largest, histogram, control)


def _climb(reference: Reference, batches: list[object], near: int, control: Control) -> int:
    """The largest finite power, from a power nearby; its gradient, not scaled, is left behind."""
    power = min(max(near, LEAST_POWER), MOST_POWER)
    kept = _finite(reference, batches, power, control)
    step = 1 if kept is not None else -1
    while LEAST_POWER <= power + step <= MOST_POWER:
        found = _finite(reference, batches, power + step, control)
        if step > 0 and found is None:
            break
        power += step
        kept = found if found is not None else kept
        if step < 0 and found is not None:
            break
    if kept is None:
        return LEAST_POWER - 1
    for name, parameter in reference.parameters():
        if name in kept:
            assert parameter.grad is not None
            reference.part(parameter.grad).copy_(kept[name] * 2.0**-power)
    return power


def _finite(
    reference: Reference, batches: list[object], power: int, control: Control
) -> Parts | None:
    """This rank's parts of the gradient at a scale; None unless finite on every rank."""
    reference.backward(batches, 2.0**power)
    gradient = reference.gradients()
    broken = not all(bool(torch.isfinite(part).all()) for part in gradient.values())
    (anywhere,) = control.maximum([float(broken)])
    return None if anywhere else {name: part.clone() for name, part in gradient.items()}


def _whole(
    powers: list[int], largest: list[float], histogram: Histogram, control: Control
) -> ScaleTrace:
    counts = control.total([float(value) for value in histogram.counts])
    squares = control.total([float(value) for value in histogram.squares])
    peaks = control.maximum(largest)
    return ScaleTrace(
        finite_powers=tuple(powers),
        absmax_log2=tuple(math.log2(value) if value > 0 else float(LOWEST_BIN) for value in peaks),
        lowest_bin=LOWEST_BIN,
        counts=tuple(int(value) for value in counts),
        squares=tuple(squares),
    )
