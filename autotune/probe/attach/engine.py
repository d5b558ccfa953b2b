"""Hooks on DeepSpeed's engine, put in place when the script imports DeepSpeed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from torch import Tensor

from autotune.probe.attach.hooks import TorchHooks
from autotune.probe.attach.losses import copied
from autotune.probe.attach.training import Step

MODULE = "deepspeed.runtime.engine"
RAW_NORM = "FP16_UnfusedOptimizer"
AT_FLOOR = "loss scale already at minimum"  # DeepSpeed has no class of its own for it


class EngineHooks:
    """Watches the backward passes and the steps of ``DeepSpeedEngine``."""

    def __init__(self, torch_hooks: TorchHooks) -> None:
        self._torch = torch_hooks
        self._training = torch_hooks.training

    def install(self, module: ModuleType) -> None:
        """Puts the hooks in place.

        Args:
            module: ``deepspeed.runtime.engine``.
        """
        engine: Any = module.DeepSpeedEngine
        engine.backward = self._backward(engine.backward)
        engine.step = self._step(engine.step)
        if hasattr(engine, "scale"):
            engine.scale = self._scale(engine.scale)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(engine: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
            divided = kwargs.get("scale_wrt_gas", args[1] if len(args) > 1 else True)
            return self._training.backward(
                lambda: original(engine, loss, *args, **kwargs),
                lambda: (_raw(engine, loss, divided), False),
            )

        return backward

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What ``engine.scale`` makes is for ``loss.backward()``."""

        @functools.wraps(original)
        def scale(engine: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(engine, loss, *args, **kwargs)
            self._torch.scaled.remember(made, _raw(engine, loss, divided=True))
            return made

        return scale

    def _step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_boundary(engine):
                return original(engine, *args, **kwargs)
            # Of a loss.backward() DeepSpeed divides the gradient, and not the loss.
            self._training.unscale(lambda: float(engine.gradient_accumulation_steps()))
            skipped = engine.skipped_steps
            self._torch.skipped = False
            told = Step(
                parameters=lambda: trained(engine),
                applied=lambda: engine.skipped_steps == skipped and not self._torch.skipped,
                norm=lambda: _norm(engine),
                bare=_leaves_gradients(engine),
            )
            try:
                return self._training.step(lambda: original(engine, *args, **kwargs), told)
            except Exception as error:
                if AT_FLOOR not in str(error) or not self._training.begun:
                    raise
                self._training.give_up(f"DeepSpeed ended the training: {error}")

        return step


def is_boundary(engine: Any) -> bool:
    """Whether the next step updates the weights; to be asked before it.

    With ``managed_gradient_accumulation`` false every step does.
    """
    managed = getattr(engine, "managed_gradient_accumulation", None)
    return (managed is not None and not managed()) or engine.is_gradient_accumulation_boundary()


def trained(engine: Any) -> Iterable[Tensor]:
    """The parameters of the model."""
    parameters: Iterable[Tensor] = engine.module.parameters()
    return parameters


def _raw(engine: Any, loss: Any, divided: bool) -> Tensor | None:
    """The loss, divided by the micro-batches of a step as DeepSpeed does before its backward."""
    if not isinstance(loss, Tensor):
        return None
    return copied(loss) / (engine.gradient_accumulation_steps() if divided else 1)


def _leaves_gradients(engine: Any) -> bool:
    """Whether the averaged gradients are still those of the model: in fp32 without ZeRO."""
    narrow = engine.fp16_enabled() or engine.bfloat16_enabled()
    scaler = getattr(engine, "torch_autocast_z0_gradscaler", None)
    return engine.zero_optimization_stage() == 0 and not narrow and scaler is None


def _norm(engine: Any) -> float | None:
    """The norm that DeepSpeed computed in the step, before clipping; None where it computes none.

    One of its classes leaves the norm of the gradient as it comes from the backward, and divides
    the gradient, but not the norm, by the loss scale. That is right where the loss was multiplied
    by it, and in DeepSpeed 0.19.8 without ZeRO it was not.
    """
    norm = engine.get_global_grad_norm()
    if norm is None:
        return None
    scale = 1.0
    if type(engine.optimizer).__name__ == RAW_NORM:
        scale = float(engine.optimizer.loss_scale_config.cur_scale)
    return float(norm) / scale
