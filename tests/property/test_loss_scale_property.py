"""The replay does what the real scalers do, step by step.

A real scaler is told in each step whether its own scale overflows; the replay sees the same steps.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.numerics.loss_scale import NEVER, OCCUPIED, Replay, replay
from autotune.readings import LEAST_POWER, MOST_POWER
from autotune.setup import LossScale, Scaler

SETTINGS = settings(deadline=None, max_examples=100)
SEQUENCES = 1000
POLICIES = 2  # of each sequence; more are no harder for the replay, and slow for the real classes
PREFIXED = 15  # sequences that are compared after every step


class Real(Protocol):
    """A scaler of a library."""

    def scale(self) -> float:
        """The scale of the next step."""

    def update(self, overflow: bool) -> bool:
        """Takes a step; whether the training goes on."""


Make = Callable[[LossScale], Real]


class DeepSpeedScaler:
    """ZeRO's: ``DynamicLossScaler``."""

    def __init__(self, policy: LossScale, consecutive: bool) -> None:
        from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

        self._real = DynamicLossScaler(
            init_scale=2.0**policy.initial_power,
            scale_window=policy.window,
            min_scale=policy.minimum,
            delayed_shift=policy.hysteresis,
            consecutive_hysteresis=consecutive,
        )

    def scale(self) -> float:
        return float(self._real.cur_scale)

    def update(self, overflow: bool) -> bool:
        try:
            self._real.update_scale(overflow)
        except Exception as error:  # the class raises no narrower one
            if "Current loss scale already at minimum" not in str(error):
                raise
            assert overflow
            assert self._real.cur_scale == self._real.min_scale
            return False
        return True


class StageZeroScaler:
    """Stage 0's: the rule that is part of its optimizers, ``_update_scale``."""

    def __init__(self, policy: LossScale, fused: bool) -> None:
        from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
        from deepspeed.runtime.fp16.loss_scaler import LossScaleConfig
        from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

        arguments = {
            "init_scale": 2.0**policy.initial_power,
            "scale_window": policy.window,
            "min_scale": policy.minimum,
            "delayed_shift": policy.hysteresis,
        }
        config: Any = LossScaleConfig(torch.float16, True, 0.0, arguments)
        self._optimizer = SimpleNamespace(loss_scale_config=config, verbose=False)
        self._update = (FP16_Optimizer if fused else FP16_UnfusedOptimizer)._update_scale

    def scale(self) -> float:
        return float(self._optimizer.loss_scale_config.cur_scale)

    def update(self, overflow: bool) -> bool:
        self._update(self._optimizer, overflow)
        return True


class TorchScaler:
    """``torch.amp.GradScaler``'s: what its ``update`` calls."""

    def __init__(self, policy: LossScale) -> None:
        self._window = policy.window
        self._scale = torch.tensor(2.0**policy.initial_power, dtype=torch.float32)
        self._clean = torch.tensor(0, dtype=torch.int32)
        self._found = {False: torch.tensor(0.0), True: torch.tensor(1.0)}

    def scale(self) -> float:
        return float(self._scale)

    def update(self, overflow: bool) -> bool:
        torch._amp_update_scale_(
            self._scale, self._clean, self._found[overflow], 2.0, 0.5, self._window
        )
        return float(self._scale) > 0


@dataclass
class Trained:
    """What a real scaler came to; as in `Replay`."""

    skipped: int = 0
    startup: int = 0
    applied: int = 0
    died_at: int = NEVER
    scale: float = 0.0
    occupancy: tuple[int, ...] = (0,) * len(OCCUPIED)


def overflows(scale: float, finite_power: int) -> bool:
    """No scale saves a step that is finite at none."""
    return finite_power < LEAST_POWER or scale > 2.0**finite_power


def trained(real: Real, finite_powers: Sequence[int]) -> list[Trained]:
    """The state before the first step and after each one."""
    now = Trained(scale=real.scale())
    states = [now]
    for step, power in enumerate(finite_powers):
        if now.died_at == NEVER:
            now = _stepped(real, now, step, power)
        states.append(now)
    return states


def _stepped(real: Real, now: Trained, step: int, power: int) -> Trained:
    skips = overflows(now.scale, power)
    occupancy = list(now.occupancy)
    if not skips:
        place = math.ceil(math.log2(now.scale)) - OCCUPIED[0]
        occupancy[min(max(place, 0), len(OCCUPIED) - 1)] += 1
    goes_on = real.update(skips)
    return Trained(
        skipped=now.skipped + skips,
        startup=now.startup + (skips and not now.applied),
        applied=now.applied + (not skips),
        died_at=NEVER if goes_on else step,
        scale=real.scale(),
        occupancy=tuple(occupancy),
    )


def replayed(found: Replay, place: int) -> Trained:
    return Trained(
        skipped=int(found.skipped[place]),
        startup=int(found.startup[place]),
        applied=int(found.applied[place]),
        died_at=int(found.died_at[place]),
        scale=float(found.scale[place]),
        occupancy=tuple(map(int, found.occupancy[place])),
    )


@dataclass(frozen=True)
class Rule:
    """A scaler of the replay, and the real classes that must do the same."""

    scaler: Scaler
    makes: tuple[Make, ...]
    consecutive: bool = False

    def replay(self, policies: Sequence[LossScale], powers: Sequence[int]) -> Replay:
        return replay(self.scaler, policies, powers, consecutive_hysteresis=self.consecutive)


RULES = {
    "deepspeed": Rule("deepspeed", (lambda policy: DeepSpeedScaler(policy, False),)),
    "deepspeed-consecutive": Rule(
        "deepspeed", (lambda policy: DeepSpeedScaler(policy, True),), consecutive=True
    ),
    "deepspeed-stage-0": Rule(
        "deepspeed-stage-0",
        (
            lambda policy: StageZeroScaler(policy, fused=True),
            lambda policy: StageZeroScaler(policy, fused=False),
        ),
    ),
    "grad-scaler": Rule("grad-scaler", (TorchScaler,)),
}


@pytest.fixture(scope="module", autouse=True)
def _one_quiet_rank() -> Iterator[None]:
    """DeepSpeed asks for the rank, for its log alone, and logs every overflow."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.fp16 import loss_scaler

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_scaler, "dist", SimpleNamespace(get_rank=lambda: 0))
        patch.setattr(loss_scaler.logger, "disabled", True)
        yield


def random_policy(chance: np.random.Generator) -> LossScale:
    """Short windows, so that scales grow; floors that are no powers of two, or above the start."""
    return LossScale(
        initial_power=int(chance.integers(0, MOST_POWER + 1)),
        window=int(chance.integers(1, 9)),
        hysteresis=int(chance.integers(1, 5)),
        minimum=int(chance.choice([1, 1, 2, 3, 16, 20, 4096])),
    )


def random_powers(chance: np.random.Generator) -> list[int]:
    """Gradients that wander, jump and break off for a while; at times for all of fp32's range."""
    steps = int(chance.integers(1, 61))
    level = chance.integers(0, MOST_POWER + 1)
    wander = np.cumsum(chance.normal(scale=chance.choice([0.0, 0.3, 2.0]), size=steps))
    noise = chance.normal(scale=chance.choice([0.0, 1.0, 4.0]), size=steps)
    powers = np.clip(level + wander + noise, LEAST_POWER - 1, MOST_POWER).astype(int)
    if chance.random() < 0.3:
        start = int(chance.integers(steps))
        powers[start : start + int(chance.integers(1, 12))] = LEAST_POWER - 1
    if chance.random() < 0.03:
        powers = np.concatenate([powers, np.full(200, LEAST_POWER - 1), powers])
    return [int(power) for power in powers]


def compare(rule: Rule, policies: Sequence[LossScale], powers: Sequence[int]) -> Replay:
    found = rule.replay(policies, powers)
    for place, policy in enumerate(policies):
        for make in rule.makes:
            assert replayed(found, place) == trained(make(policy), powers)[-1], (policy, powers)
    return found


@pytest.mark.parametrize("name", RULES)
def test_a_replay_ends_where_the_real_scaler_does(name: str) -> None:
    chance = np.random.default_rng(0)
    died = grew = 0
    for _ in range(SEQUENCES):
        policies = [random_policy(chance) for _ in range(POLICIES)]
        found = compare(RULES[name], policies, random_powers(chance))
        died += int((found.died_at != NEVER).sum())
        grew += int((found.scale > [2.0**policy.initial_power for policy in policies]).sum())
    # What was compared holds every kind of event, often.
    assert grew >= 100
    assert died >= 20 if name != "deepspeed-stage-0" else died == 0


@pytest.mark.parametrize("name", RULES)
def test_a_replay_is_where_the_real_scaler_is_after_every_step(name: str) -> None:
    chance, rule = np.random.default_rng(1), RULES[name]
    for _ in range(PREFIXED):
        policies = [random_policy(chance) for _ in range(POLICIES)]
        powers = random_powers(chance)[:100]
        real = [[trained(make(item), powers) for make in rule.makes] for item in policies]
        for steps in range(len(powers) + 1):
            found = rule.replay(policies, powers[:steps])
            for place, runs in enumerate(real):
                for states in runs:
                    assert replayed(found, place) == states[steps]


POLICY = st.builds(
    LossScale,
    initial_power=st.integers(0, MOST_POWER),
    window=st.integers(1, 12),
    hysteresis=st.integers(1, 4),
    minimum=st.sampled_from((1, 2, 3, 16, 4096)),
)
# Pieces of equal steps: a list of single ones seldom leaves time to grow.
PIECES = st.lists(
    st.tuples(st.integers(LEAST_POWER - 1, MOST_POWER), st.integers(1, 40)), max_size=8
)


@pytest.mark.parametrize("name", RULES)
@SETTINGS
@given(policies=st.lists(POLICY, max_size=4), pieces=PIECES)
def test_a_replay_of_any_steps_ends_where_the_real_scaler_does(
    name: str, policies: list[LossScale], pieces: list[tuple[int, int]]
) -> None:
    compare(RULES[name], policies, [power for power, steps in pieces for _ in range(steps)])


@dataclass
class Training:
    """One weight, trained in fp16 by the real ``torch.amp.GradScaler``."""

    policy: LossScale

    def __post_init__(self) -> None:
        self.weight = torch.zeros(1, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0)
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=2.0**self.policy.initial_power, growth_interval=self.policy.window
        )

    def step(self, finite_power: int) -> bool:
        """A gradient that fp16 holds up to a scale; whether the step was applied."""
        with torch.no_grad():
            self.weight.zero_()
        slope = 65504.0 / 2.0**finite_power if finite_power >= LEAST_POWER else math.inf
        self.optimizer.zero_grad()
        loss = (self.weight.half().float() * slope + 1.0).sum()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return bool(self.weight.item() != 0.0)


def test_a_replay_skips_the_steps_that_a_real_grad_scaler_skips() -> None:
    chance = np.random.default_rng(2)
    policy = LossScale(initial_power=16, window=5, hysteresis=1, minimum=0)
    powers = [int(power) for power in chance.integers(9, 15, size=150)]
    powers[60:64] = [LEAST_POWER - 1] * 4
    training = Training(policy)
    applied = 0
    for step, power in enumerate(powers):
        applied += training.step(power)
        found = replay("grad-scaler", [policy], powers[: step + 1])
        assert found.applied[0] == applied
        assert found.skipped[0] == step + 1 - applied
        assert found.scale[0] == training.scaler.get_scale()
    assert 10 < applied < 140  # neither all nor none


def test_the_step_after_a_real_grad_scaler_fell_to_zero_makes_the_weights_nan() -> None:
    policy = LossScale(initial_power=4, window=5, hysteresis=1, minimum=0)
    training, steps = Training(policy), 0
    while training.scaler.get_scale() > 0:
        assert not training.step(LEAST_POWER - 1)
        steps += 1
    assert not math.isnan(training.weight.item())
    training.step(14)
    assert math.isnan(training.weight.item())
    found = replay("grad-scaler", [policy], [*[LEAST_POWER - 1] * steps, 14])
    assert (found.died_at[0], found.scale[0], found.skipped[0]) == (steps - 1, 0.0, steps)
    assert steps == 4 + 150
