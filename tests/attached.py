"""The hooks in this process, with a course that only keeps what it is sent."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from autotune.outcome import Outcome
from autotune.probe.attach.hooks import TorchHooks
from autotune.probe.attach.training import Course, Session, Training
from autotune.probe.attach.windows import How, Tools, Window
from autotune.probe.control import Alone


class Counting(Alone):
    """Counts barriers."""

    barriers = 0

    def barrier(self) -> None:
        self.barriers += 1


class Tap:
    """Knows what happened while it was entered."""

    def __init__(self) -> None:
        self.on = False
        self.entered = 0

    def __enter__(self) -> None:
        assert not self.on
        self.on = True
        self.entered += 1

    def __exit__(self, *error: Any) -> None:
        self.on = False


class Bench:
    """Sends every window of a training to a list, and what is done with each by plan."""

    def __init__(self, plan: Sequence[How], *, backwards: int = 1, losses: bool = True) -> None:
        self.windows: list[Window] = []
        self.sent: list[Outcome] = []
        self.control = Counting()
        self.tap = Tap()
        self.clock = itertools.count()  # every look at it is a second later
        self.training = Training(self.begin, contextlib.nullcontext(), losses=losses)
        self.hooks = TorchHooks(self.training)
        self._plan = plan
        self._backwards = backwards

    def begin(self) -> Session:
        tools = Tools(
            control=self.control,
            now=lambda: float(next(self.clock)),
            tap=self.tap,
            backwards=self._backwards,
        )
        return Session(
            tools=tools,
            course=self._course(),
            refuse=lambda reason: Outcome(kind="unsafe", reason=reason),
            send=self.sent.append,
        )

    def _course(self) -> Course:
        for how in self._plan:
            self.windows.append((yield how))
        return Outcome(kind="ok")


@contextlib.contextmanager
def hooked(bench: Bench) -> Iterator[Bench]:
    """The hooks in place; torch is as it was afterwards."""
    optimizers: list[Any] = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW]
    owners: list[tuple[Any, str]] = [
        (torch.autograd, "backward"),
        (torch.amp.GradScaler, "scale"),
        (torch.amp.GradScaler, "step"),
        (torch.optim.Optimizer, "__init__"),
        (torch.nn.utils, "clip_grad_norm_"),
        (torch.nn.utils, "clip_grads_with_norm_"),
        *((kind, "step") for kind in (*optimizers, torch.optim.LBFGS)),
    ]
    before = [getattr(owner, name) for owner, name in owners]
    bench.hooks.install()
    try:
        yield bench
    finally:
        for (owner, name), value in zip(owners, before, strict=True):
            setattr(owner, name, value)
