"""Cuts what the hooks tell into windows: the backward passes of a step, and the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from torch import Tensor

from autotune.probe.control import Control


class How(Enum):
    """What is done with a window."""

    TAPPED = "its collectives are recorded"
    TIMED = "each part is timed, after a barrier"
    PLAIN = "nothing, but that its loss is kept"


class Tap(Protocol):
    """Records collectives while it is entered."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> Any: ...


@dataclass(slots=True, eq=False)
class Window:
    """One optimizer step of the script on this rank.

    Attributes:
        how: What is done with it.
        rest: Seconds from the end of the step before to the begin of its own, without its
            backward passes: loading data, forward, and whatever else the script does.
        backward: Seconds of its backward passes.
        step: Seconds of its optimizer steps.
        backwards: Number of backward passes.
        elements: Of the gradient that the first optimizer applies; of the tapped window only.
        losses: What each backward took the gradient of, still on the device.
        scaled: Such losses that a scaler of the script has multiplied.
        outcomes: Of each optimizer step: whether it was applied, or a tensor that is not zero if
            it was not.
        norms: Of the gradients that the optimizers applied; None where it is not known.
    """

    how: How
    rest: float = 0.0
    backward: float = 0.0
    step: float = 0.0
    backwards: int = 0
    elements: int = 0
    losses: list[Tensor] = field(default_factory=list)
    scaled: list[Tensor] = field(default_factory=list)
    outcomes: list[bool | Tensor] = field(default_factory=list)
    norms: list[float | None] = field(default_factory=list)

    @property
    def applied(self) -> bool:
        """Whether any optimizer changed its weights; waits for the device."""
        return any(
            item if isinstance(item, bool) else not bool(item.any()) for item in self.outcomes
        )

    @property
    def loss(self) -> float:
        """Sum over the backward passes; waits for the device."""
        return float(sum(float(value) for value in (*self.losses, *self.scaled)))

    @property
    def norm(self) -> float | None:
        """Norm of the whole gradient; None where no step applied it or a part is not known."""
        known = [value for value in self.norms if value is not None]
        if not known or len(known) < len(self.norms) or not self.applied:
            return None
        return math.sqrt(sum(value**2 for value in known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What is needed to measure windows.

    Attributes:
        control: Side channel between the ranks.
        now: Seconds once the device is idle.
        tap: Records collectives.
        backwards: Backward passes that belong to a step at least.
    """

    control: Control
    now: Callable[[], float]
    tap: Tap
    backwards: int = 1


class Windows:
    """The open window, and the one before it, whose further optimizers may still step.

    A window ends at the first optimizer step after a backward pass. Optimizers that step after
    that, before the next backward, add to its step.
    """

    def __init__(self, tools: Tools, how: How) -> None:
        self._tools = tools
        self._tapping = self._running = False
        self._left = self._since = tools.now()
        self._stepping: Window | None = None
        self.open = Window(how)
        self.last: Window | None = None

    def begin_backward(self) -> None:
        """A backward pass of the open window begins."""
        self.open.backwards += 1
        if self.open.how is How.TIMED:
            self._end_rest()
            self._start()
        elif self.open.how is How.TAPPED:
            self._listen(True)

    def end_backward(self) -> None:
        """It has ended.

        After the last one that a step needs the tap stays on, for scripts that reduce their
        gradients by hand.
        """
        if self.open.how is How.TIMED:
            end = self._tools.now()
            self.open.backward += end - self._since
            self._left = end
        elif self.open.how is How.TAPPED:
            self._listen(self.open.backwards >= self._tools.backwards)

    def begin_step(self) -> Window | None:
        """An optimizer step is about to begin; its window, or None before the first backward."""
        window = self._stepping = self.open if self.open.backwards else self.last
        if self.open.how is How.TIMED:
            self._end_rest()
        self._listen(False)
        return window

    def resume_step(self) -> None:
        """The step itself begins, or goes on."""
        window = self._stepping
        if window is not None and window.how is How.TIMED:
            self._start()
        elif window is self.open and window.how is How.TAPPED:
            self._listen(True)
        self._running = True

    def pause_step(self) -> None:
        """The step ends, or is interrupted by something that is no part of it."""
        window = self._stepping
        if self._running and window is not None and window.how is How.TIMED:
            self._left = self._tools.now()
            window.step += self._left - self._since
        self._listen(False)
        self._running = False

    def end_step(self, applied: bool | Tensor, norm: Callable[[], float | None]) -> Window | None:
        """The step has ended. Returns its window if that has ended with it."""
        self.pause_step()
        looks, window, self._stepping = self.looks, self._stepping, None
        if window is None:
            return None
        window.outcomes.append(applied)
        window.norms.append(norm() if looks else None)
        if window is self.open:
            return window
        if self.open.how is How.TIMED:
            self._left = self._tools.now()
        return None

    @property
    def looks(self) -> bool:
        """Whether a step goes on whose gradient may be looked at."""
        return self._stepping is not None and self._stepping.how is not How.PLAIN

    @property
    def control(self) -> Control:
        """Side channel between the ranks."""
        return self._tools.control

    def turn(self, how: How) -> None:
        """Opens the next window."""
        self.last, self.open = self.open, Window(how)
        if how is How.TIMED:
            self._left = self._tools.now()

    def abandon(self) -> None:
        """Whatever goes on has failed."""
        self._stepping, self._running = None, False
        self._listen(False)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Something of ours inside a step: outside its time, unseen by the tap."""
        was_running = self._running
        self.pause_step()
        yield
        if was_running:
            self.resume_step()

    def _end_rest(self) -> None:
        self.open.rest += self._tools.now() - self._left

    def _start(self) -> None:
        self._tools.control.barrier()
        self._since = self._tools.now()

    def _listen(self, on: bool) -> None:
        if on and not self._tapping:
            self._tools.tap.__enter__()
        elif self._tapping and not on:
            self._tools.tap.__exit__(None, None, None)
        self._tapping = on
