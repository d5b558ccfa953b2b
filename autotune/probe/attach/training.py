"""What the hooks tell, in order: the one place that knows where the script is."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import Tensor

from autotune.outcome import Outcome
from autotune.probe.attach.clips import Clips
from autotune.probe.attach.gradients import count_elements, gradient_norm
from autotune.probe.attach.windows import How, Tools, Window, Windows

Result = TypeVar("Result")
Closure = Callable[..., Any]
Course = Generator[How, Window, Outcome]
"""Says what is done with the next window, is sent each window that ended, returns the outcome."""
MOST_REFUSALS = 3  # backward passes after the end, before a script that goes on is ended


class FinishedError(BaseException):
    """Ends the script once it has been measured.

    Not an Exception, so that what a script does about errors does not touch it.
    """


class SwallowedError(Exception):
    """The script caught the cause, an error of a backward pass or a step, and went on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of an optimizer step, or of what calls it.

    Attributes:
        parameters: That it updates.
        applied: After it: whether it changed the weights, or a tensor that is zero if it did.
        norm: After it: norm of the gradient, where a library knows it.
        bare: Whether the gradient that it applies is there before it.
    """

    parameters: Callable[[], Iterable[Tensor]]
    applied: Callable[[], bool | Tensor] = lambda: True
    norm: Callable[[], float | None] | None = None
    bare: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The measuring, which begins with the first backward pass.

    Attributes:
        tools: For the windows.
        course: What is done with them.
        refuse: The outcome when a library gives up, for the reason given.
        send: Tells the controller the outcome.
    """

    tools: Tools
    course: Course
    refuse: Callable[[str], Outcome]
    send: Callable[[Outcome], None]


class Training:
    """The script's training, as the hooks see it.

    Only the outermost call counts: DeepSpeed's backward calls torch's, a scaler's step calls the
    optimizer's, and checkpointed layers call backward inside backward.

    Attributes:
        caught: An exception that a hooked call raised.
        clips: By how much the script has clipped the gradients of this step.
        finished: Whether the outcome has been sent.
        steps: Windows that have ended.
    """

    def __init__(
        self,
        begin: Callable[[], Session],
        words: AbstractContextManager[None],
        *,
        losses: bool = True,
    ) -> None:
        """Begins nothing yet.

        Args:
            begin: Called at the first backward pass.
            words: Entered by what is ours, so that an error of it never reaches the script.
            losses: Whether losses and gradient norms are taken.
        """
        self.caught: Exception | None = None
        self.finished = False
        self.steps = 0
        self._begin = begin
        self._words = words
        self.clips = Clips()
        self._losses = losses
        self._session: Session | None = None
        self._windows: Windows | None = None
        self._doing: Literal["backward", "step", "closure"] | None = None
        self._norm: float | None = None
        self._refusals = 0

    @property
    def begun(self) -> bool:
        """Whether there was a backward pass."""
        return self._session is not None

    @property
    def looks(self) -> bool:
        """Whether the gradients of this step are looked at."""
        windows = self._windows
        return self._losses and windows is not None and windows.open.how is not How.PLAIN

    def backward(
        self,
        call: Callable[[], Result],
        loss: Callable[[], tuple[Tensor | None, bool]],
    ) -> Result:
        """Runs a backward pass.

        Args:
            call: Does it.
            loss: What its gradient is taken of, and whether that may be scaled for fp16.

        Raises:
            FinishedError: The script was measured before, and went on.
        """
        if self._doing in ("backward", "step"):
            return call()
        if self.finished:
            self._refuse()
        outer, self._doing = self._doing, "backward"
        with self._words:
            windows = self._ready()
            if not windows.open.backwards:
                self.clips.clear()
            self._keep(windows.open, loss)
            windows.begin_backward()
        result = self._guarded(call)
        with self._words:
            windows.end_backward()
        self._doing = outer
        return result

    def _refuse(self) -> None:
        self._refusals += 1
        if self._refusals > MOST_REFUSALS:
            os._exit(0)
        raise FinishedError

    def _ready(self) -> Windows:
        self._raise_caught()
        if self._windows is None:
            self._session = self._begin()
            self._windows = Windows(self._session.tools, next(self._session.course))
        return self._windows

    def _raise_caught(self) -> None:
        if self.caught is not None:
            raise SwallowedError from self.caught

    def _keep(self, window: Window, loss: Callable[[], tuple[Tensor | None, bool]]) -> None:
        if self._losses:
            value, scaled = loss()
            if value is not None:
                (window.scaled if scaled else window.losses).append(value)

    def _guarded(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except Exception as error:
            if self._windows is not None:
                self._windows.abandon()
            self._doing = None
            self.caught = error
            raise

    def step(self, call: Callable[[], Result], step: Step) -> Result:
        """Runs an optimizer step.

        Raises:
            FinishedError: It was the last one that is needed.
        """
        if self._doing is not None or not self._begin_step(step):
            return call()
        result = self._guarded(call)
        self._end_step(step)
        return result

    def closure_step(
        self, call: Callable[[Closure], Result], closure: Closure, step: Step
    ) -> Result:
        """Runs an optimizer step that calls backward itself, in a closure.

        The step begins when the closure has ended. What it takes to call it again, as a line
        search does, is no part of the step either.
        """
        if self._doing is not None or self.finished:
            return call(closure)

        def measured(*args: Any, **kwargs: Any) -> Any:
            if self._doing == "step" and self._windows is not None:
                self._windows.pause_step()
            first, self._doing = not begun, "closure"
            value = closure(*args, **kwargs)
            if first and self._begin_step(step):
                begun.append(True)
            elif not first:
                self._resume_step()
            return value

        begun: list[bool] = []
        self._doing = "closure"
        result = self._guarded(lambda: call(measured))
        self._doing = None
        if begun:
            self._end_step(step)
        return result

    def _begin_step(self, step: Step) -> bool:
        """Begins a step unless it is none of ours."""
        if self._windows is None or self.finished:
            return False
        self._doing, self._norm = "step", None
        with self._words:
            self._raise_caught()
            window = self._windows.begin_step()
            if window is self._windows.open and window.how is How.TAPPED:
                window.elements = count_elements(step.parameters(), self._windows.control)
        if step.bare:
            self.take_norm(step.parameters)
        self._resume_step()
        return True

    def _resume_step(self) -> None:
        assert self._windows is not None
        self._doing = "step"
        with self._words:
            self._windows.resume_step()

    def take_norm(
        self,
        parameters: Callable[[], Iterable[Tensor]],
        scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """Takes the norm of the gradient that the step that goes on is about to apply.

        Args:
            parameters: That it updates.
            scale: Of the gradient, if it is still scaled.
        """
        windows = self._windows
        if self._doing != "step" or not self._losses or windows is None or not windows.looks:
            return
        with self._words, windows.aside():
            norm = gradient_norm(parameters(), windows.control, self.clips.factors())
            self._norm = None if norm is None else norm / scale()

    def unscale(self, scale: Callable[[], float]) -> None:
        """Divides the losses of the window that were given to backward scaled."""
        window = self._windows.open if self._windows is not None else None
        if window is not None and window.scaled:
            by = scale()
            window.losses += [value / by for value in window.scaled]
            window.scaled.clear()

    def _end_step(self, step: Step) -> None:
        self._doing = None
        with self._words:
            assert self._windows is not None
            ended = self._windows.end_step(step.applied(), lambda: self._known_norm(step))
            if ended is not None:
                self._advance(ended)
        if self.finished:
            raise FinishedError

    def _known_norm(self, step: Step) -> float | None:
        norm = step.norm() if step.norm is not None and self._losses else None
        return self._norm if norm is None else norm

    def _advance(self, ended: Window) -> None:
        """Tells the course of a window, and opens the next one or ends it all."""
        assert self._session is not None
        assert self._windows is not None
        self.steps += 1
        try:
            how = self._session.course.send(ended)
        except StopIteration as end:
            self._finish(end.value)
        else:
            self._windows.turn(how)

    def give_up(self, reason: str) -> None:
        """The library ends the training: that is the outcome, on every rank.

        Raises:
            FinishedError: Always.
        """
        with self._words:
            assert self._session is not None
            self._finish(self._session.refuse(reason))
        raise FinishedError

    def _finish(self, outcome: Outcome) -> None:
        assert self._session is not None
        self._session.send(outcome)
        self.finished = True
