"""Hooks on torch, in which every training loop ends, whatever library it uses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autotune.probe.attach.clips import install_clip_hooks
from autotune.probe.attach.gradients import parameters_of
from autotune.probe.attach.losses import Scaled, value_of
from autotune.probe.attach.training import Step, Training

HOOKED = "_autotune_hooked"


class TorchHooks:
    """Watches ``torch.autograd.backward``, gradient scalers and optimizers.

    Attributes:
        training: Is told.
        scaled: What losses were before they were scaled.
        skipped: Whether the last step that a scaler was asked for was skipped.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        self.scaled = Scaled()
        self.skipped = False
        self._in_scaler = False
        self._fate: bool | Tensor = True  # of the step inside the scaler

    def install(self) -> None:
        """Puts the hooks in place; they stay to the end of the process."""
        # Tensor.backward looks the function up by this name.
        torch.autograd.backward = self._backward(torch.autograd.backward)
        scaler: Any = torch.amp.GradScaler
        scaler.scale = self._scaler_scale(scaler.scale)
        scaler.step = self._scaler_step(scaler.step)
        optimizer: Any = torch.optim.Optimizer
        optimizer.__init__ = self._optimizer_init(optimizer.__init__)
        install_clip_hooks(self.training.clips, lambda: self.training.looks)

    def _backward(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            gradients = args[0] if args else kwargs.get("grad_tensors")
            self.training.backward(
                lambda: original(tensors, *args, **kwargs),
                lambda: self._loss(tensors, gradients),
            )

        return backward

    def _loss(self, tensors: Any, gradients: Any) -> tuple[Tensor | None, bool]:
        raw = self.scaled.raw(tensors)
        return (raw, False) if raw is not None else (value_of(tensors, gradients), True)

    def _scaler_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(scaler: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(scaler, loss, *args, **kwargs)
            self.scaled.remember(made, loss)
            return made

        return scale

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            self.training.unscale(scaler.get_scale)
            # Of an optimizer that is not torch's nobody hears whether it ran.
            self._fate = not isinstance(optimizer, torch.optim.Optimizer)
            self._in_scaler = True
            try:
                return self.training.step(
                    lambda: original(scaler, optimizer, *args, **kwargs),
                    Step(
                        parameters=lambda: parameters_of(optimizer),
                        applied=lambda: self._fate,
                        bare=False,  # the scaler has yet to unscale it
                    ),
                )
            finally:
                self._in_scaler = False
                self.skipped = self._fate is False

        return step

    def _optimizer_init(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            kind = type(optimizer)
            if not hasattr(kind.step, HOOKED):
                kind.step = self._optimizer_step(kind.step)

        return init

    def _optimizer_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Torch's own hooks before and after a step would not tell of one that raises."""

        @functools.wraps(original)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._in_scaler:
                self._note_fate(optimizer)
            told = Step(parameters=lambda: parameters_of(optimizer))
            closure = next(filter(callable, (*args, *kwargs.values())), None)
            if closure is None:
                return self.training.step(lambda: original(optimizer, *args, **kwargs), told)

            def call(measured: Callable[..., Any]) -> Any:
                given = [measured if item is closure else item for item in args]
                named = {k: measured if v is closure else v for k, v in kwargs.items()}
                return original(optimizer, *given, **named)

            return self.training.closure_step(call, closure, told)

        setattr(step, HOOKED, True)
        return step

    def _note_fate(self, optimizer: Any) -> None:
        """The scaler lets the step run; fused optimizers are told by a tensor to do nothing."""
        found = getattr(optimizer, "found_inf", None)
        self._fate = found if isinstance(found, Tensor) else True
        scale = getattr(optimizer, "grad_scale", None)
        self.training.take_norm(
            lambda: parameters_of(optimizer), lambda: 1.0 if scale is None else float(scale)
        )
