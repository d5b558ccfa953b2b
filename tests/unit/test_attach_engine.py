"""The hooks on DeepSpeed's engine, on one that only looks like it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autotune.probe.attach.engine import EngineHooks, is_boundary
from autotune.probe.attach.training import FinishedError
from autotune.probe.attach.windows import How
from tests.attached import Bench, hooked


class Unfused:
    """Leaves its norm as it comes from the backward."""

    def __init__(self) -> None:
        self.loss_scale_config = SimpleNamespace(cur_scale=1024.0)


Unfused.__name__ = "FP16_UnfusedOptimizer"


class Engine:
    """Counts micro-batches as DeepSpeed does."""

    def __init__(self, accumulation: int = 1) -> None:
        torch.manual_seed(0)
        self.module = nn.Linear(4, 1)
        self.inner = torch.optim.SGD(self.module.parameters(), lr=0.1)
        self.optimizer: Any = self.inner
        self.accumulation = accumulation
        self.micro_steps = self.skipped_steps = 0
        self.norm: float | None = 3.0
        self.overflows = False
        self.error: str | None = None

    def gradient_accumulation_steps(self) -> int:
        return self.accumulation

    def is_gradient_accumulation_boundary(self) -> bool:
        return (self.micro_steps + 1) % self.accumulation == 0

    def zero_optimization_stage(self) -> int:
        return 0

    def fp16_enabled(self) -> bool:
        return False

    def bfloat16_enabled(self) -> bool:
        return False

    def get_global_grad_norm(self) -> float | None:
        return self.norm

    def scale(self, loss: Tensor) -> Tensor:
        return loss * 1024

    def backward(
        self, loss: Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True
    ) -> None:
        (loss / self.accumulation if scale_wrt_gas else loss).backward()

    def step(self) -> None:
        if self.is_gradient_accumulation_boundary():
            if self.error:
                raise Exception(self.error)
            self.skipped_steps += self.overflows
            if not self.overflows:
                self.inner.step()
            self.inner.zero_grad()
        self.micro_steps += 1


@pytest.fixture
def bench() -> Iterator[Bench]:
    with hooked(Bench([How.TIMED] * 9)) as made:
        yield made


@pytest.fixture
def engine_class(bench: Bench) -> Any:
    made: Any = type("Fresh", (Engine,), {})  # hooks change the class
    EngineHooks(bench.hooks).install(SimpleNamespace(DeepSpeedEngine=made))  # type: ignore[arg-type]
    return made


def loss_of(engine: Any) -> Tensor:
    out: Tensor = engine.module(torch.ones(2, 4)).pow(2).mean()
    return out


def test_only_the_step_at_the_boundary_ends_a_window(bench: Bench, engine_class: Any) -> None:
    engine = engine_class(accumulation=3)
    losses = []
    for _ in range(6):
        loss = loss_of(engine)
        losses.append(float(loss.detach()))
        engine.backward(loss)
        engine.step()
    assert [window.backwards for window in bench.windows] == [3, 3]
    assert bench.windows[0].loss == pytest.approx(sum(losses[:3]) / 3)
    assert [window.norm for window in bench.windows] == [3.0, 3.0]


def test_a_loss_that_the_script_divides_itself_is_not_divided_again(
    bench: Bench, engine_class: Any
) -> None:
    engine = engine_class(accumulation=2)
    for arguments in ({"scale_wrt_gas": False}, {}):
        loss = loss_of(engine)
        engine.backward(loss, **arguments)
        engine.step()
    assert bench.windows[0].loss == pytest.approx(1.5 * float(loss.detach()))


def test_a_backward_by_the_tensor_is_seen_and_its_loss_divided_as_its_gradient_is(
    bench: Bench, engine_class: Any
) -> None:
    engine = engine_class(accumulation=2)
    loss = loss_of(engine)
    engine.scale(loss).backward()
    engine.step()
    loss_of(engine).backward()
    engine.step()
    assert bench.windows[0].loss == pytest.approx(float(loss.detach()))


def test_an_overflow_is_a_step_that_was_not_applied(bench: Bench, engine_class: Any) -> None:
    engine = engine_class()
    for overflows in (True, False):
        engine.overflows = overflows
        engine.backward(loss_of(engine))
        engine.step()
    assert [window.applied for window in bench.windows] == [False, True]
    assert [window.norm for window in bench.windows] == [None, 3.0]


def test_without_a_norm_of_its_own_that_of_the_gradients_is_taken(
    bench: Bench, engine_class: Any
) -> None:
    engine = engine_class()
    engine.norm = None
    engine.backward(loss_of(engine))
    gradients = [item.grad.flatten() for item in engine.module.parameters()]
    expected = float(torch.cat(gradients).norm())
    engine.step()
    assert bench.windows[0].norm == pytest.approx(expected)


def test_a_norm_that_was_left_scaled_is_that_of_the_gradient_that_is_applied(
    bench: Bench, engine_class: Any
) -> None:
    engine = engine_class()
    engine.optimizer = Unfused()
    engine.backward(loss_of(engine))
    engine.step()
    assert bench.windows[0].norm == 3.0 / 1024


def test_a_loss_scale_at_its_minimum_is_the_outcome(bench: Bench, engine_class: Any) -> None:
    engine = engine_class()
    engine.backward(loss_of(engine))
    engine.error = "Current loss scale already at minimum - cannot decrease scale anymore."
    with pytest.raises(FinishedError):
        engine.step()
    (outcome,) = bench.sent
    assert outcome.kind == "unsafe"
    assert outcome.reason is not None
    assert "already at minimum" in outcome.reason


def test_other_errors_of_the_engine_reach_the_script(bench: Bench, engine_class: Any) -> None:
    engine = engine_class()
    engine.backward(loss_of(engine))
    engine.error = "something else"
    with pytest.raises(Exception, match="something else"):
        engine.step()
    assert bench.sent == []


def test_where_the_caller_owns_the_boundary_every_step_is_one() -> None:
    def engine(managed: bool, boundary: bool) -> Any:
        return SimpleNamespace(
            managed_gradient_accumulation=lambda: managed,
            is_gradient_accumulation_boundary=lambda: boundary,
        )

    assert is_boundary(engine(managed=False, boundary=False))
    assert not is_boundary(engine(managed=True, boundary=False))
    assert is_boundary(SimpleNamespace(is_gradient_accumulation_boundary=lambda: True))
