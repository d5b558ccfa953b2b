"""What fp32 makes of a workload's batches: the truth that setups are compared with."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from autotune.probe import memory
from autotune.probe.control import Control
from autotune.probe.line import Line
from autotune.probe.reference import Activations, Reference, load_weights
from autotune.probe.workload import Rank, Task, build_task
from autotune.request import ReadingRequest
from autotune.workload import Workload

MOST_BATCHES = 64  # kept; training runs go round them
PERMUTED_RUNS = 3
STRIDE = 64.0  # the SGD step over the weights, so that rounding the weights hides no gradient


@dataclass(frozen=True, slots=True)
class Shape:
    """What the batches of a training run depend on."""

    workload: Workload
    micro_batch: int
    accumulation: int


@dataclass(frozen=True, slots=True)
class Ground:
    """The truth for one shape. Tensors are this rank's parts, by name, in host memory.

    Attributes:
        pool: Micro-batches of this rank.
        accumulation: Micro-batches in a step.
        weights: Before the first step.
        gradient: Of the first step, average over all ranks.
        rate: A power of two: an SGD step with it moves the weights far more than it rounds them.
        activation_module: Module with the largest output of the first step, on any rank.
        activation_absmax: That output.
        losses: Of a training run in the order of the pool.
        permuted_losses: Of runs in other orders.
    """

    pool: Sequence[Any]
    accumulation: int
    weights: Mapping[str, Tensor]
    gradient: Mapping[str, Tensor]
    rate: float
    activation_module: str
    activation_absmax: float
    losses: tuple[float, ...]
    permuted_losses: tuple[tuple[float, ...], ...]

    def step(self, number: int, order: Sequence[int] | None = None) -> list[Any]:
        """Micro-batches of one optimizer step; ``order`` permutes those of the whole run."""
        start = number * self.accumulation
        places = range(start, start + self.accumulation)
        return [self.pool[(order[item] if order else item) % len(self.pool)] for item in places]

    def task(self, shape: Shape, place: Rank) -> Task:
        """A fresh model with the same weights on every call."""
        task = build_task(shape.workload, shape.micro_batch, place)
        load_weights(task.model, self.weights, place)
        return task


def draw_batches(task: Task, shape: Shape, steps: int) -> list[Any]:
    """The first micro-batches of the workload, whole steps of them."""
    wanted = min(steps, max(1, MOST_BATCHES // shape.accumulation)) * shape.accumulation
    return [next(task.batches) for _ in range(wanted)]


def break_ground(
    request: ReadingRequest, shape: Shape, place: Rank, control: Control, line: Line
) -> Ground:
    """Takes gradient and training runs of fp32."""
    line.announce("reference")
    task = build_task(shape.workload, shape.micro_batch, place)
    pool = draw_batches(task, shape, request.steps)
    reference = Reference(task, place, control, torch.float32, torch.float32)
    weights = reference.weights()
    reference.model.eval()  # dropout would draw another mask for every dtype
    watched = Activations(reference.model)
    reference.backward(pool[: shape.accumulation])
    module, absmax = _largest(*watched.close(), control)
    gradient = {name: part.to("cpu", copy=True) for name, part in reference.gradients().items()}
    ground = Ground(
        pool=pool,
        accumulation=shape.accumulation,
        weights=weights,
        gradient=gradient,
        rate=_rate(weights, gradient, control),
        activation_module=module,
        activation_absmax=absmax,
        losses=(),
        permuted_losses=(),
    )
    ground = _with_losses(ground, reference, request, control)
    del reference, task
    memory.release(place.device)
    return ground


def _largest(module: str, absmax: float, control: Control) -> tuple[str, float]:
    """The largest over the ranks; the module is that of rank 0."""
    (largest,) = control.maximum([absmax])
    return control.share({"module": module})["module"], largest


def _rate(weights: Mapping[str, Tensor], gradient: Mapping[str, Tensor], control: Control) -> float:
    weight, slope = control.total([_squares(weights, gradient), _squares(gradient, gradient)])
    if slope == 0.0 or not math.isfinite(slope):
        return 1.0
    return 2.0 ** round(math.log2(STRIDE * math.sqrt(max(weight, 1.0) / slope)))


def _squares(parts: Mapping[str, Tensor], names: Mapping[str, Tensor]) -> float:
    return sum(float(parts[name].double().square().sum()) for name in names)


def _with_losses(
    ground: Ground, reference: Reference, request: ReadingRequest, control: Control
) -> Ground:
    """The ground with its training runs: one in order, some permuted."""
    orders: list[list[int] | None] = [None]
    for run in range(PERMUTED_RUNS):
        chance = random.Random(f"{request.workload.seed} {run}")
        orders.append(permuted(request.steps, ground.accumulation, chance))
    runs = [_train(ground, reference, request, order, control) for order in orders]
    return replace(ground, losses=runs[0], permuted_losses=tuple(runs[1:]))


def permuted(steps: int, accumulation: int, chance: random.Random) -> list[int]:
    """The micro-batches of a run in another order, each in its own quarter of the run.

    So the last quarters of two runs train on the same micro-batches, and their mean losses
    differ by the order alone.
    """
    quarter = -(-steps // 4) * accumulation
    order = list(range(steps * accumulation))
    for end in range(len(order), 0, -quarter):
        block = order[max(0, end - quarter) : end]
        chance.shuffle(block)
        order[max(0, end - quarter) : end] = block
    return order


def _train(
    ground: Ground,
    reference: Reference,
    request: ReadingRequest,
    order: Sequence[int] | None,
    control: Control,
) -> tuple[float, ...]:
    reference.reset(ground.weights)
    reference.model.train()
    optimizer = reference.optimizer(request.learning_rate)
    losses = []
    for number in range(request.steps):
        losses.append(reference.backward(ground.step(number, order)))
        reference.clip()
        optimizer.step()
    return mean_over_ranks(losses, control)


def mean_over_ranks(values: Sequence[float], control: Control) -> tuple[float, ...]:
    """Each value's mean over the ranks; not finite if it was so on any of them."""
    totals = control.total(list(values))
    return tuple(total / control.world_size for total in totals)
