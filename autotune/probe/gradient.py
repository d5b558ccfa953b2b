"""The gradient that a setup applies, read off its weights, and a short training run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from autotune.probe import memory
from autotune.probe.build import build_engine
from autotune.probe.control import Control
from autotune.probe.engine import Engine, Optimization, ScaleFloorError
from autotune.probe.ground import Ground, Shape, break_ground, mean_over_ranks
from autotune.probe.line import Line
from autotune.probe.parts import Products, own_part, products
from autotune.probe.workload import Rank
from autotune.readings import GradientReading, Siblings
from autotune.request import ReadingRequest
from autotune.setup import Setup

MOST_TRIES = 48  # steps skipped for overflow before the first is applied: scales fall bit by bit
ROUNDED = 2.0**-21  # of a weight: gradients that move it less may be lost by rounding it
SMALL_NORM = 1e-6  # of the whole gradient: tensors below are not compared on their own
TRUSTED = 0.01  # a gradient with a gain further off is no measure for others
Parts = Mapping[str, Tensor]


@dataclass(slots=True)
class Shelf:
    """What the readings of one launch share.

    Attributes:
        grounds: fp32 truths, by shape, steps and learning rate as JSON.
        siblings: Key and gradient of the first sound setup of each family that shards differently.
    """

    grounds: dict[str, Ground] = field(default_factory=dict)
    siblings: dict[tuple[object, ...], tuple[str, Parts]] = field(default_factory=dict)


def read_gradient(
    request: ReadingRequest, place: Rank, control: Control, line: Line, shelf: Shelf
) -> GradientReading:
    """Compares the setup with fp32; every rank calls it and gets the same reading.

    Raises:
        RefusedSetupError: The library refuses the text.
    """
    setup = request.setup
    shape = shape_of(request)
    key = json.dumps([asdict(shape), request.steps, request.learning_rate], sort_keys=True)
    if key not in shelf.grounds:
        shelf.grounds[key] = break_ground(request, shape, place, control, line)
    ground, family = shelf.grounds[key], (key, *family_of(setup))
    line.announce("gradient")
    slope = _slope(request, ground, shape, place, control)
    line.announce("train")
    run = _run(request, ground, shape, place, control)
    compared = compare(slope.gradient, ground.gradient, slope.visible, control)
    whole = sum(compared.values(), Products())
    worst, error = worst_tensor(compared)
    sibling = _against(slope, shelf.siblings.get(family), control)
    if abs(gain(whole) - 1) < TRUSTED:
        shelf.siblings.setdefault(family, (setup.key, slope.gradient))
    return GradientReading(
        loss_finite=slope.loss_finite,
        activation_absmax=ground.activation_absmax,
        activation_module=ground.activation_module,
        skipped_tries=slope.tries,
        gain=gain(whole),
        relative_error=relative_error(whole),
        cosine=cosine(whole),
        worst_tensor=worst,
        worst_tensor_error=error,
        underflow_fraction=whole.vanished / max(whole.visible, 1.0),
        underflow_norm=math.sqrt(whole.vanished_reference / max(whole.reference, TINY)),
        reference_norm=math.sqrt(whole.reference),
        moved_fraction=run.moved_fraction,
        applied_steps=run.applied,
        skipped_steps=request.steps - run.applied,
        losses=run.losses,
        reference_losses=ground.losses,
        permuted_losses=ground.permuted_losses,
        sibling=sibling,
    )


TINY = 1e-300  # in place of a norm of zero


def shape_of(request: ReadingRequest) -> Shape:
    """What the setup's batches depend on."""
    return Shape(request.workload, request.setup.micro_batch, request.setup.gradient_accumulation)


def family_of(setup: Setup) -> tuple[object, ...]:
    """Setups that differ in sharding, buckets and overlap alone should apply one gradient."""
    return (
        *(setup.backend, setup.precision, setup.grad_comm_dtype),
        *(setup.activation_checkpointing, setup.micro_batch, setup.gradient_accumulation),
        setup.loss_scale,
    )


@dataclass(frozen=True, slots=True)
class Slope:
    """The gradient that one SGD step applied.

    Attributes:
        gradient: This rank's parts.
        visible: Where a gradient as large as the reference's would have moved the weight.
        tries: Steps skipped before.
        loss_finite: Whether its loss was finite on every rank.
    """

    gradient: Parts
    visible: Parts
    tries: int
    loss_finite: bool


def _slope(
    request: ReadingRequest, ground: Ground, shape: Shape, place: Rank, control: Control
) -> Slope:
    task = ground.task(shape, place)
    sgd = Optimization("sgd", ground.rate, clip=False)
    engine = build_engine(task, request.setup, request.rendered, sgd)
    task.model.eval()  # as the reference
    before = master_parts(engine, place)
    tries, finite, applied = 0, True, False
    while not applied and tries < MOST_TRIES:
        finite = finite and all(map(math.isfinite, train_step(engine, ground, 0)))
        try:
            applied = engine.step()
        except ScaleFloorError:
            break
        tries += not applied
    after = master_parts(engine, place)
    engine.close()
    del engine, task
    memory.release(place.device)
    (broken,) = control.maximum([float(not finite)])
    rate = ground.rate
    names = ground.gradient
    return Slope(
        gradient={name: (before[name] - after[name]) / rate for name in names},
        visible={
            name: (names[name].abs() * rate > ROUNDED * before[name].abs()) & (names[name] != 0)
            for name in names
        },
        tries=tries,
        loss_finite=not broken,
    )


def master_parts(engine: Engine, place: Rank) -> dict[str, Tensor]:
    """This rank's parts of the weights that the optimizer updates, in host memory."""
    return {
        name: own_part(whole, place).to("cpu", torch.float32, copy=True)
        for name, whole in engine.masters()
    }


def train_step(engine: Engine, ground: Ground, number: int) -> list[float]:
    """Forward and backward of one step; the losses of its micro-batches on this rank."""
    losses = []
    for batch in ground.step(number):
        loss = engine.forward(batch)
        losses.append(float(loss.detach()))
        engine.backward(loss)
        engine.end_micro_batch()
    return losses


@dataclass(frozen=True, slots=True)
class Run:
    """A short training run: see `GradientReading`."""

    losses: tuple[float, ...]
    applied: int
    moved_fraction: float


def _run(
    request: ReadingRequest, ground: Ground, shape: Shape, place: Rank, control: Control
) -> Run:
    task = ground.task(shape, place)
    adam = Optimization("adamw", request.learning_rate)
    engine = build_engine(task, request.setup, request.rendered, adam)
    losses, applied, moved = [], 0, 0.0
    before: Parts | None = master_parts(engine, place)
    for number in range(request.steps):
        losses.append(sum(found := train_step(engine, ground, number)) / len(found))
        try:
            applied += (took := engine.step())
        except ScaleFloorError:
            losses += [math.nan] * (request.steps - len(losses))
            break
        if took and before is not None:
            moved = moved_fraction(before, master_parts(engine, place), ground.gradient, control)
            before = None
    engine.close()
    del engine, task
    memory.release(place.device)
    return Run(mean_over_ranks(losses, control), applied, moved)


def moved_fraction(before: Parts, after: Parts, gradient: Parts, control: Control) -> float:
    """Weights that differ, of those with a gradient in fp32."""
    moved = with_gradient = 0.0
    for name, slope in gradient.items():
        has = slope != 0
        with_gradient += float(has.sum())
        moved += float(((before[name] != after[name]) & has).sum())
    moved, with_gradient = control.total([moved, with_gradient])
    return moved / max(with_gradient, 1.0)


def compare(
    gradient: Parts, reference: Parts, visible: Parts, control: Control
) -> dict[str, Products]:
    """Sums over the ranks, tensor by tensor."""
    names = list(reference)
    flat = [
        value
        for name in names
        for value in products(gradient[name], reference[name], visible[name]).values()
    ]
    width = len(flat) // len(names)
    totals = iter(control.total(flat))
    return {name: Products(*_take(totals, width)) for name in names}


def _take(values: Iterator[float], number: int) -> list[float]:
    return [next(values) for _ in range(number)]


def gain(sums: Products) -> float:
    """``<g, r> / <r, r>``."""
    return sums.cross / max(sums.reference, TINY)


def relative_error(sums: Products) -> float:
    """``|g - r| / |r|``."""
    return math.sqrt(sums.difference / max(sums.reference, TINY))


def cosine(sums: Products) -> float:
    """``<g, r> / (|g| |r|)``."""
    norms = math.sqrt(sums.own) * math.sqrt(sums.reference)
    return sums.cross / norms if norms else 0.0


def worst_tensor(compared: Mapping[str, Products]) -> tuple[str, float]:
    """The tensor with the largest relative error, of those that matter to the whole."""
    whole = sum(compared.values(), Products()).reference
    errors = {
        name: relative_error(sums)
        for name, sums in compared.items()
        if sums.reference > SMALL_NORM**2 * whole
    }
    # A NaN compares as neither larger nor smaller, so it counts as infinite.
    worst = max(errors, key=lambda name: _bounded(errors[name]), default="")
    return worst, errors.get(worst, 0.0)


def _bounded(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _against(slope: Slope, family: tuple[str, Parts] | None, control: Control) -> Siblings | None:
    if family is None:
        return None
    key, gradient = family
    sums = sum(compare(slope.gradient, gradient, slope.visible, control).values(), Products())
    return Siblings(key=key, gain=gain(sums), relative_error=relative_error(sums))
