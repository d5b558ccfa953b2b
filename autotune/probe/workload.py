"""From the description of a workload to a model, batches and a loss."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autotune.errors import UsageError
from autotune.probe.gpt import Block, Transformer
from autotune.probe.protocol import (
    CheckedLoss,
    CheckedTokens,
    check_layers,
    check_made,
    check_model,
    check_new,
    endless,
)
from autotune.probe.task import DISTINCT_BATCHES, Rank, Task
from autotune.workload import Gpt, Hf, PythonFactory, Script, Workload

__all__ = [
    "Rank",
    "Task",
    "build_task",
    "count_tokens",
    "load_factory",
    "move",
    "python_task",
]


def build_task(workload: Workload, micro_batch: int, place: Rank) -> Task:
    """Builds model and batches; equal weights on every rank, other batches on each.

    Raises:
        UsageError: The workload does not give what is needed.
    """
    model = workload.model
    assert not isinstance(model, Script)  # it brings a training loop of its own
    torch.manual_seed(workload.seed)
    if isinstance(model, Gpt):
        return _gpt_task(model, micro_batch, workload.seed, place)
    if isinstance(model, Hf):
        from autotune.probe.hf import hf_task  # transformers is there for this alone

        return hf_task(model, micro_batch, workload.seed, place)
    return python_task(model, micro_batch, workload.seed, place)


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
        batches=endless(batches, "gpt"),
        loss=_next_token_loss,
        layers=(Block,),
        tokens=lambda batch: int(batch[:, 1:].numel()),
    )


def _next_token_loss(model: nn.Module, batch: Tensor) -> Tensor:
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def python_task(factory: PythonFactory, micro_batch: int, seed: int, place: Rank) -> Task:
    """The workload of the user's own factory.

    ``workload.python: package.module:factory`` names a function, a class or anything else that
    can be called. Its module is imported in each worker, with the sweep file's folder first on
    ``sys.path``; it can use whatever is on the machine, such as a checkpoint or real data. It is
    called once for every probe, with those of these keyword arguments that it takes:

    * ``micro_batch``: samples of a batch. Setups differ in it, so batches have to follow it.
    * ``rank``, ``world_size``: this process and how many there are. Weights must be equal on all
      ranks, batches should differ.
    * ``seed``: of the sweep file. torch's own seed is already set to it.
    * ``folder``: the sweep file's, absolute, to resolve relative paths; the working folder is
      the one where autotune was started.
    * each of the sweep file's ``args``; all of them have to be taken.

    It returns an object with these attributes:

    * ``model``: a new ``torch.nn.Module`` in each call, on any real device. What is trained is
      fp32, for each setup does its own casting; frozen parameters may have any dtype.
    * ``batches``: an iterable of batches, such as a list or a ``DataLoader``; gone through again
      when it ends. A batch is a tensor, or tensors nested in dicts, lists and tuples; they are
      moved to the device.
    * ``loss(model, batch)``: a tensor with one value and a gradient. It has to call the ``model``
      it is given, which is the sharded one, and is best computed in fp32.
    * ``layers``, if given: the classes of the repeated layers, which are sharded and
      checkpointed one by one. Default: the items of the outermost ``nn.ModuleList``s.
    * ``tokens(batch)``, if given: the tokens of a batch, for tokens per second. Default: the
      elements of ``input_ids``, else of the first integer tensor with two dimensions or more,
      else the samples.

    Raises:
        UsageError: The factory breaks this protocol. What the loss returns is checked the first
            time; an exception of the factory or the loss is passed on as it is.
    """
    build = load_factory(factory)
    name = factory.path
    offered = {
        "micro_batch": micro_batch,
        "rank": place.rank,
        "world_size": place.world_size,
        "seed": seed,
        "folder": str(_folder(factory)),
        **factory.args,
    }
    made = build(**_accepted(build, offered, factory))
    check_made(made, name)
    check_model(made.model, name)
    check_new(made.model, name)
    return Task(
        model=made.model.to(place.device),
        batches=_moved(endless(made.batches, name), place.device),
        loss=CheckedLoss(made.loss, name),
        layers=check_layers(getattr(made, "layers", ()), made.model, name),
        tokens=CheckedTokens(getattr(made, "tokens", count_tokens), name),
    )


def _folder(factory: PythonFactory) -> Path:
    return Path(factory.folder or ".").absolute()


def load_factory(factory: PythonFactory) -> Callable[..., Any]:
    """Imports ``package.module:factory``, the sweep file's folder first on the path.

    Raises:
        UsageError: There is no such module, it fails, or it has nothing of the name to call.
    """
    folder = str(_folder(factory))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module_name, _, attribute = factory.path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(_import_failed(module_name, folder, error)) from error
    if not hasattr(module, attribute):
        near = difflib.get_close_matches(attribute, vars(module), n=1)
        raise UsageError(
            f"Module {module_name} has no attribute {attribute!r}"
            + (f"; did you mean {near[0]}?" if near else ".")
            + f" It was read from {getattr(module, '__file__', None) or 'no file'}."
        )
    build: Callable[..., Any] = getattr(module, attribute)
    if not callable(build):
        raise UsageError(
            f"{factory.path} is a {type(build).__name__} and cannot be called; name a function "
            "that returns the workload."
        )
    return build


def _import_failed(module: str, folder: str, error: Exception) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module}.".startswith(f"{missing}."):
        return (
            f"There is no module {missing} in {folder}, nor elsewhere on Python's path; put "
            f"{missing.replace('.', '/')}.py beside the sweep file, or install it."
        )
    # The frames of the import machinery stand above those of the module, and below in a
    # SyntaxError, which names its place itself.
    frames = [item for item in traceback.extract_tb(error.__traceback__) if _is_code(item.filename)]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        where = ""
    return f"Module {module} fails when it is imported: {type(error).__name__}: {error}{where}"


def _is_code(file: str) -> bool:
    own = (__file__, importlib.__file__)
    return not file.startswith("<") and file not in own


def _accepted(
    build: Callable[..., Any], offered: Mapping[str, Any], factory: PythonFactory
) -> dict[str, Any]:
    """Those of ``offered`` that the factory takes; the file's own must all be taken."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except ValueError as error:
        raise UsageError(f"{factory.path} does not say what it takes; wrap it in a def.") from error
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [item.name for item in parameters if item.kind in by_name]
    takes_all = any(item.kind is item.VAR_KEYWORD for item in parameters)
    unknown = [] if takes_all else sorted(set(factory.args) - set(names))
    if unknown:
        raise UsageError(
            f"{factory.path} does not take {', '.join(unknown)} (from args in the sweep file). "
            f"It takes {', '.join(sorted(names)) or 'nothing'}."
        )
    _check_required(parameters, offered, factory)
    return {name: value for name, value in offered.items() if takes_all or name in names}


def _check_required(parameters: Any, offered: Mapping[str, Any], factory: PythonFactory) -> None:
    """Whether every parameter without a default is offered."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        item for item in parameters if item.kind not in several and item.default is item.empty
    ]
    lacking = [
        item.name
        for item in needed
        if item.name not in offered or item.kind is inspect.Parameter.POSITIONAL_ONLY
    ]
    if lacking:
        own = ", ".join(name for name in offered if name not in factory.args)
        raise UsageError(
            f"{factory.path} needs {', '.join(lacking)}; give it under args in the sweep file, or "
            f"give it a default. Without args it gets, by name: {own}."
        )


def _moved(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    return (move(batch, device) for batch in batches)


def move(batch: Any, device: torch.device) -> Any:
    """Tensors of a nested batch, on the device."""
    if hasattr(batch, "to"):  # a tensor, or what a tokenizer returns
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
    if isinstance(batch, Mapping) and isinstance(batch.get("input_ids"), Tensor):
        return int(batch["input_ids"].numel())
    tensors = list(_tensors(batch))
    for tensor in tensors:
        if not tensor.is_floating_point() and tensor.dim() > 1:
            return int(tensor.numel())
    return int(tensors[0].shape[0]) if tensors else 1


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, list | tuple):
        for item in batch:
            yield from _tensors(item)
