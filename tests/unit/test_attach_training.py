"""What the hooks see of training loops, in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autotune.probe.attach.training import FinishedError, SwallowedError
from autotune.probe.attach.windows import How
from tests.attached import Bench, hooked

Make = Callable[..., Bench]
TIMED, TAPPED, PLAIN = How.TIMED, How.TAPPED, How.PLAIN


@pytest.fixture
def bench() -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda *plan, **options: stack.enter_context(hooked(Bench(plan, **options)))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def loss_of(model: nn.Module, number: int = 0) -> Tensor:
    out: Tensor = model(torch.full((2, 4), 1.0 + number)).pow(2).mean()
    return out


def norm_of(model: nn.Module) -> float:
    return float(torch.stack([item.grad.norm() for item in model.parameters()]).norm())  # type: ignore[union-attr]


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> list[float]:
    """Plain steps, and the loss of each."""
    losses = []
    for step in range(number):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
    return losses


def test_a_window_is_the_backward_passes_of_a_step_and_the_step(bench: Make) -> None:
    made = bench(TAPPED, TIMED, TIMED, TIMED)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    for count in (1, 2, 3):
        losses = [loss_of(model, number) / count for number in range(count)]
        expected.append(float(sum(losses).detach()))  # type: ignore[union-attr]
        for loss in losses:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [window.backwards for window in made.windows] == [1, 2, 3]
    assert [window.loss for window in made.windows] == pytest.approx(expected)
    assert all(window.applied for window in made.windows)


def test_the_parts_of_a_window_are_timed_without_the_waiting_for_other_ranks(bench: Make) -> None:
    made = bench(TIMED, TIMED, losses=False)
    model = make_model()
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    (window,) = made.windows
    # Each look at the clock takes a second: one inside a part, one from part to part.
    assert (window.backward, window.step, window.rest) == (1.0, 1.0, 2.0)
    assert made.control.barriers == 2


def test_a_plain_window_costs_no_waiting_and_no_look_at_the_clock(bench: Make) -> None:
    made = bench(PLAIN, PLAIN, PLAIN, PLAIN)
    model = make_model()
    losses = steps(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    assert made.control.barriers == 0
    assert next(made.clock) == 1  # when it began
    assert [window.loss for window in made.windows] == pytest.approx(losses)
    assert [window.norm for window in made.windows] == [None] * 3


def test_further_optimizers_add_to_the_step_that_has_ended(bench: Make) -> None:
    made = bench(TIMED, TIMED, TIMED)
    model = make_model()
    optimizers = [torch.optim.SGD([item], lr=0.1) for item in model.parameters()]
    norms = []
    for step in range(2):
        model.zero_grad()
        loss_of(model, step).backward()
        norms.append(norm_of(model))
        for optimizer in optimizers:
            optimizer.step()
    assert len(made.windows) == 2
    assert [window.step for window in made.windows] == [2.0, 2.0]
    assert [window.norm for window in made.windows] == pytest.approx(norms)


def test_steps_before_the_first_backward_are_none(bench: Make) -> None:
    made = bench(TIMED, TIMED)
    model = make_model()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not made.training.begun
    assert made.windows == []


def test_a_backward_inside_a_backward_is_part_of_it(bench: Make) -> None:
    made = bench(TIMED, TIMED)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 4, requires_grad=True)
    checkpoint(model, x, use_reentrant=True).mean().backward()
    optimizer.step()
    assert [window.backwards for window in made.windows] == [1]


@pytest.mark.parametrize("divide", ["before", "after"])
def test_a_scaled_loss_is_told_as_it_was(bench: Make, divide: str) -> None:
    made = bench(TAPPED, TIMED, PLAIN, PLAIN)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    for step in range(3):
        loss = loss_of(model, step)
        losses.append(float(loss.detach()) / 2)
        scaled = scaler.scale(loss / 2) if divide == "before" else scaler.scale(loss) / 2
        scaled.backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert [window.loss for window in made.windows] == pytest.approx(losses)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_is_not_applied(bench: Make, fused: bool) -> None:
    made = bench(TIMED, TIMED, TIMED)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    norms = []
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(loss_of(model) * factor).backward()
        norms.append(norm_of(model) / scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    assert [window.applied for window in made.windows] == [False, True]
    assert made.windows[0].norm is None
    assert made.windows[1].norm == pytest.approx(norms[1])


def test_the_norm_is_that_before_the_scripts_own_clipping(bench: Make) -> None:
    made = bench(TIMED, TIMED, TIMED)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for most in (1e-3, 1e9):
        optimizer.zero_grad()
        loss_of(model).backward()
        norms.append(norm_of(model))
        parameters = (item for item in model.parameters())
        torch.nn.utils.clip_grad_norm_(parameters, most)
        assert norm_of(model) == pytest.approx(min(most, norms[-1]), rel=1e-3)
        optimizer.step()
    assert [window.norm for window in made.windows] == pytest.approx(norms)


def test_a_step_that_calls_backward_in_a_closure_begins_after_it(bench: Make) -> None:
    made = bench(TIMED, TIMED)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []

    def closure() -> Tensor:
        loss = loss_of(model)
        loss.backward()
        norms.append(norm_of(model))
        return loss

    returned: Any = optimizer.step(closure)
    (window,) = made.windows
    assert float(returned.detach()) == pytest.approx(window.loss)
    assert (window.backwards, window.backward, window.step) == (1, 1.0, 1.0)
    assert window.norm == pytest.approx(norms[0])


def test_a_line_search_calls_its_closure_outside_of_the_step(bench: Make) -> None:
    made = bench(TIMED, TIMED)
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    optimizer.step(closure)
    (window,) = made.windows
    assert window.backwards > 1
    assert window.backward == float(window.backwards)
    assert window.step == float(window.backwards)


def test_the_tap_hears_the_backward_and_the_step_and_not_the_forward(bench: Make) -> None:
    made = bench(TAPPED, TIMED, backwards=2)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    heard = []
    for number in range(2):
        loss = loss_of(model, number)
        heard.append(made.tap.on)
        loss.backward()
    heard.append(made.tap.on)  # gradients may be reduced by hand here
    optimizer.step()
    heard.append(made.tap.on)
    assert heard == [False, False, True, False]
    assert made.windows[0].elements == sum(item.numel() for item in model.parameters())


def test_the_last_window_ends_the_script_and_one_that_goes_on_is_ended(
    bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    made = bench(PLAIN, PLAIN)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(FinishedError):
        steps(model, optimizer, 9)
    assert [outcome.kind for outcome in made.sent] == ["ok"]
    assert made.training.steps == 2
    for _ in range(3):
        with pytest.raises(FinishedError):
            loss_of(model).backward()
        assert codes == []
    with pytest.raises(FinishedError):
        loss_of(model).backward()
    assert codes == [0]
    assert not issubclass(FinishedError, Exception)


def test_an_error_that_the_script_caught_is_told_at_its_next_step(bench: Make) -> None:
    made = bench(TIMED, TIMED)
    model = make_model()
    loss = loss_of(model)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert isinstance(made.training.caught, RuntimeError)
    with pytest.raises(SwallowedError) as error:
        loss_of(model).backward()
    assert error.value.__cause__ is made.training.caught


def test_an_error_of_an_optimizer_is_seen_too(bench: Make) -> None:
    made = bench(TIMED, TIMED)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward()
    optimizer.param_groups[0]["lr"] = "much"
    with pytest.raises(TypeError):
        optimizer.step()
    assert isinstance(made.training.caught, TypeError)
    with pytest.raises(SwallowedError):
        loss_of(model).backward()


def test_a_loss_with_a_gradient_of_its_own_counts_as_their_product(bench: Make) -> None:
    made = bench(TIMED, TIMED)
    model = make_model()
    out = model(torch.ones(3, 4))
    weights = torch.tensor([[1.0], [2.0], [3.0]])
    out.backward(weights)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert made.windows[0].loss == pytest.approx(float((out * weights).sum().detach()))
