"""What a workload must give, checked part by part, with a message for each way to get it wrong."""

from __future__ import annotations

import operator
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autotune.errors import UsageError

PARTS = ("model", "batches", "loss")
_SEEN: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models that a probe of this process had


def check_made(made: Any, name: str) -> None:
    """Whether what a factory returned has the parts of a workload.

    Raises:
        UsageError: It lacks one, or its model, loss or token count is of the wrong type.
    """
    if made is None:
        raise UsageError(
            f"{name} returned None; end it with a return of an object with model, batches and "
            "loss(model, batch)."
        )
    missing = [part for part in PARTS if not hasattr(made, part)]
    if missing:
        raise UsageError(
            f"{name} returned {type(made).__name__} without {', '.join(missing)}. "
            "It must return an object with model, batches and loss(model, batch)."
        )
    for part in ("loss", "tokens"):
        if hasattr(made, part) and not callable(getattr(made, part)):
            raise UsageError(
                f"{name} returned {part} = {_short(getattr(made, part))}, which cannot be called; "
                f"give a function, {part}({'model, batch' if part == 'loss' else 'batch'})."
            )


def check_model(model: Any, name: str) -> None:
    """Whether it is a model that can be trained with fp32 master weights.

    Frozen parameters may have any dtype.

    Raises:
        UsageError: It cannot be trained as it is.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"The model of {name} is {_short(model)}; it must be a torch.nn.Module, not a class or "
            "its weights."
        )
    parameters = dict(model.named_parameters())
    trained = {key: value for key, value in parameters.items() if value.requires_grad}
    if not trained:
        what = f"{len(parameters)} parameters, all frozen" if parameters else "no parameters"
        raise UsageError(f"The model of {name} has {what}; leave at least one to train.")
    meta = [key for key, value in parameters.items() if value.is_meta]
    if meta:
        raise UsageError(
            f"The model of {name} has parameters on the meta device, such as {meta[0]}; build it "
            "with real weights."
        )
    half = [key for key, value in trained.items() if value.dtype != torch.float32]
    if half:
        raise UsageError(
            f"The model of {name} has weights of {_dtype(trained[half[0]])}, such as {half[0]}; "
            "master weights must be fp32, and each setup casts them itself: leave out .to(dtype), "
            "or call .float()."
        )


def check_new(model: nn.Module, name: str) -> None:
    """Whether no earlier probe of this process had the model, and sharded or cast it.

    Raises:
        UsageError: One had.
    """
    if model in _SEEN:
        raise UsageError(
            f"{name} returned the same model object again, which an earlier probe has trained; "
            "build a new one in every call, and none at the top of the module."
        )
    _SEEN.add(model)


def check_layers(layers: Any, model: nn.Module, name: str) -> tuple[type[nn.Module], ...]:
    """Classes of modules that the model has, and that can be sharded on their own.

    Raises:
        UsageError: They are no such classes.
    """
    classes = tuple(layers) if isinstance(layers, Iterable) else (layers,)
    wrong = [
        item for item in classes if not (isinstance(item, type) and issubclass(item, nn.Module))
    ]
    if wrong or isinstance(layers, type | nn.Module):
        raise UsageError(
            f"The layers of {name} are {_short(layers)}; give a tuple of classes of modules, such "
            "as (Block,)."
        )
    modules = [item for item in model.modules() if isinstance(item, classes)]
    if classes and not modules:
        raise UsageError(
            f"The model of {name} has no module of the layers "
            f"{', '.join(item.__name__ for item in classes)}; give classes that it is built of."
        )
    tied = [item for item in modules if item is not model and _is_tied(item, model)]
    if tied:
        raise UsageError(
            f"The layers of {name} hold {type(tied[0]).__name__}, whose weights are tied to others "
            "outside of it, so it cannot be sharded on its own; leave it out."
        )
    return classes


def _is_tied(part: nn.Module, model: nn.Module) -> bool:
    """Whether a weight of the part stands elsewhere in the model, too."""
    everywhere, inside = _uses(model), _uses(part)
    return any(everywhere[weight] > times for weight, times in inside.items())


def _uses(model: nn.Module) -> Counter[int]:
    return Counter(id(item) for _, item in model.named_parameters(remove_duplicate=False))


def endless(batches: Any, name: str) -> Iterator[Any]:
    """Batches without end: from the start again when they end.

    Raises:
        UsageError: At once if they cannot be gone through; later if there are none, or none again.
    """
    if isinstance(batches, Mapping | str) or not _is_iterable(batches):
        raise UsageError(
            f"The batches of {name} are {_short(batches)}; give a list of batches or a DataLoader."
        )
    return _rounds(batches, name)


def _is_iterable(batches: Any) -> bool:
    # A data set of torch has __getitem__ alone, and iter() of it never ends or fails late.
    return hasattr(batches, "__iter__")


def _rounds(batches: Iterable[Any], name: str) -> Iterator[Any]:
    number = 0
    while True:
        before = number
        for batch in batches:
            number += 1
            yield batch
        if number == 0:
            raise UsageError(f"The batches of {name} are empty; give at least one.")
        if number == before:
            raise UsageError(
                f"The batches of {name} ended after {number} and cannot be restarted; return a "
                "list or a DataLoader, not a generator."
            )


class CheckedLoss:
    """A loss whose first value is checked."""

    def __init__(self, loss: Callable[[nn.Module, Any], Any], name: str) -> None:
        self._loss = loss
        self._name = name
        self._checked = False

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss.

        Raises:
            UsageError: Nothing can be learnt from it.
        """
        found = self._loss(model, batch)
        if not self._checked:
            self._check(found)
            self._checked = True
        value: Tensor = found
        return value

    def _check(self, found: Any) -> None:
        if not isinstance(found, Tensor):
            raise UsageError(
                f"The loss of {self._name} returned {_short(found)}; it must return a tensor with "
                "one value, not a number (leave out .item()) or a model's whole output."
            )
        if found.numel() != 1:
            raise UsageError(
                f"The loss of {self._name} has the shape {tuple(found.shape)}; it must be one "
                "value: take its mean."
            )
        if not found.requires_grad:
            raise UsageError(
                f"The loss of {self._name} has no gradient; compute it from the model's output, "
                "without .detach() and torch.no_grad()."
            )


class CheckedTokens:
    """A count of tokens that is checked each time."""

    def __init__(self, tokens: Callable[[Any], Any], name: str) -> None:
        self._tokens = tokens
        self._name = name

    def __call__(self, batch: Any) -> int:
        """Tokens of a batch.

        Raises:
            UsageError: It is no whole number above zero.
        """
        found = self._tokens(batch)
        try:
            number = operator.index(found)
        except TypeError:
            number = 0
        if number < 1:
            raise UsageError(
                f"tokens of {self._name} returned {_short(found)}; it must return a whole number "
                "of at least 1: the tokens, or samples, of the batch."
            )
        return number


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _short(value: Any) -> str:
    """A value in an error message; of what has no short form, its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str | int | float | None):
        return repr(value)[:60]
    return f"a {type(value).__name__}"
