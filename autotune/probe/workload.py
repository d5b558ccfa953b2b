"""From the description of a workload to a model, batches and a loss."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autotune.errors import UsageError
from autotune.probe.gpt import Block, Transformer
from autotune.workload import Gpt, PythonFactory, Workload

DISTINCT_BATCHES = 8  # enough that no step trains on the batch before it


@dataclass(frozen=True, slots=True)
class Task:
    """A model with what is needed to train it.

    Attributes:
        model: Weights in fp32, on the device.
        batches: Batches without end.
        loss: Scalar loss of the model on a batch.
        layers: Classes to shard and to checkpoint; empty to let the backend find them.
        tokens: Number of tokens in a batch.
    """

    model: nn.Module
    batches: Iterator[Any]
    loss: Callable[[nn.Module, Any], Tensor]
    layers: tuple[type[nn.Module], ...]
    tokens: Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Rank:
    """Where this process stands in the launch."""

    rank: int
    world_size: int
    device: torch.device


def build_task(workload: Workload, micro_batch: int, place: Rank) -> Task:
    """Builds model and batches; equal weights on every rank, other batches on each."""
    torch.manual_seed(workload.seed)
    if isinstance(workload.model, Gpt):
        return _gpt_task(workload.model, micro_batch, workload.seed, place)
    return _python_task(workload.model, micro_batch, workload.seed, place)


def _gpt_task(config: Gpt, micro_batch: int, seed: int, place: Rank) -> Task:
    with place.device:
        model = Transformer(config)
    generator = torch.Generator().manual_seed(seed + 1 + place.rank)
    size = (micro_batch, config.sequence + 1)
    batches = [
        torch.randint(config.vocab, size, generator=generator).to(place.device)
        for _ in range(DISTINCT_BATCHES)
    ]
    return Task(
        model=model,
        batches=_endless(batches),
        loss=_next_token_loss,
        layers=(Block,),
        tokens=lambda batch: int(batch[:, 1:].numel()),
    )


def _next_token_loss(model: nn.Module, batch: Tensor) -> Tensor:
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def _python_task(factory: PythonFactory, micro_batch: int, seed: int, place: Rank) -> Task:
    build = load_factory(factory)
    offered = {
        "micro_batch": micro_batch,
        "rank": place.rank,
        "world_size": place.world_size,
        "seed": seed,
        **factory.args,
    }
    made = build(**_accepted(build, offered, factory))
    missing = [name for name in ("model", "batches", "loss") if not hasattr(made, name)]
    if missing:
        raise UsageError(
            f"{factory.path} returned {type(made).__name__} without {', '.join(missing)}. "
            "It must return an object with model, batches and loss(model, batch)."
        )
    return Task(
        model=made.model.to(place.device),
        batches=(move(batch, place.device) for batch in _endless(made.batches)),
        loss=made.loss,
        layers=tuple(getattr(made, "layers", ())),
        tokens=getattr(made, "tokens", count_tokens),
    )


def load_factory(factory: PythonFactory) -> Callable[..., Any]:
    """Imports ``package.module:factory``, the sweep file's folder first on the path.

    Raises:
        UsageError: The module has no such attribute.
    """
    if factory.folder is not None and factory.folder not in sys.path:
        sys.path.insert(0, factory.folder)
    module_name, _, attribute = factory.path.partition(":")
    module = importlib.import_module(module_name)
    if not hasattr(module, attribute):
        raise UsageError(f"Module {module_name} has no attribute {attribute!r}.")
    build: Callable[..., Any] = getattr(module, attribute)
    return build


def _accepted(
    build: Callable[..., Any], offered: dict[str, Any], factory: PythonFactory
) -> dict[str, Any]:
    """Those of ``offered`` that the factory takes; the file's own must all be taken."""
    parameters = inspect.signature(build).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return offered
    names = {parameter.name for parameter in parameters}
    unknown = sorted(set(factory.args) - names)
    if unknown:
        raise UsageError(
            f"{factory.path} does not take {', '.join(unknown)} (from args in the sweep file). "
            f"It takes {', '.join(sorted(names)) or 'nothing'}."
        )
    return {name: value for name, value in offered.items() if name in names}


def _endless(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise UsageError("The workload's batches ended and cannot be restarted.")


def move(batch: Any, device: torch.device) -> Any:
    """Tensors of a nested batch, on the device."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        items = [move(item, device) for item in batch]
        # A named tuple takes its fields one by one.
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return batch


def count_tokens(batch: Any) -> int:
    """Default token count: elements of ``input_ids``, else of the first integer tensor.

    A batch without integers counts its first dimension, that is samples.
    """
    if isinstance(batch, dict) and isinstance(batch.get("input_ids"), Tensor):
        return int(batch["input_ids"].numel())
    tensors = list(_tensors(batch))
    for tensor in tensors:
        if not tensor.is_floating_point() and tensor.dim() > 1:
            return int(tensor.numel())
    return int(tensors[0].shape[0]) if tensors else 1


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, list | tuple):
        for item in batch:
            yield from _tensors(item)
