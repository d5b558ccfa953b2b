"""The layers of a model of transformers: what is sharded and checkpointed, what takes no part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import Tensor, nn

from autotune.errors import UsageError

Layers = tuple[type[nn.Module], ...]
LARGE = 0.5  # of the largest stack: an encoder beside its decoder, but no adapter


def layers_of(model: nn.Module, names: Sequence[str]) -> Layers:
    """The classes of the layers.

    They are those that are asked for; else those that the model says must stay whole, where they
    are stacked (its embeddings must, too, but are no layers); else the items of the largest
    stacks. A stack is an outermost ``nn.ModuleList``; what is frozen does not count.

    Args:
        model: Of transformers.
        names: Of the classes, from the sweep file.

    Raises:
        UsageError: The model has no class of such a name.
    """
    classes = {type(item).__name__: type(item) for item in model.modules() if item is not model}
    if names:
        return _asked(names, classes, model)
    sizes = {stack: _trained(stack) for stack in stacks(model)}
    lists = [item for item in model.modules() if isinstance(item, nn.ModuleList)]
    stacked = {type(item) for items in lists for item in items if _trained(item)}
    declared = [classes[name] for name in _declared(model) if name in classes]
    layers = [kind for kind in declared if kind in stacked]
    if layers:
        return tuple(layers)
    large = [stack for stack in sizes if sizes[stack] >= max(1, LARGE * max(sizes.values()))]
    return tuple(dict.fromkeys(type(item) for stack in large for item in stack))


def _asked(
    names: Sequence[str], classes: Mapping[str, type[nn.Module]], model: nn.Module
) -> Layers:
    unknown = [name for name in names if name not in classes]
    if unknown:
        stacked = dict.fromkeys(type(item).__name__ for stack in stacks(model) for item in stack)
        others = sorted(set(classes) - set(stacked))
        raise UsageError(
            f"The model {type(model).__name__} has no modules of the class {', '.join(unknown)}, "
            f"which layers names. Its layers are of {', '.join(stacked) or 'no class'}; its other "
            f"modules of {', '.join(others)}."
        )
    return tuple(classes[name] for name in names)


def _declared(model: nn.Module) -> list[str]:
    names: Iterable[str] = getattr(model, "_no_split_modules", None) or ()
    return sorted(names)


def _trained(module: nn.Module) -> int:
    return sum(item.numel() for item in module.parameters() if item.requires_grad)


def stacks(module: nn.Module) -> Iterator[nn.ModuleList]:
    """The outermost lists of modules."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from stacks(child)


def freeze_unused(model: nn.Module, loss: Tensor) -> None:
    """Freezes what the loss does not depend on: it would get no gradient that could be reduced.

    Such are the vision tower of a model that reads text, or a mask token. A stack of layers is
    frozen as a whole or not at all, for which experts a batch reaches is chance.

    Args:
        model: All weights still take gradients that should.
        loss: Of any batch, with its graph.
    """
    used = {id(weight) for weight in _leaves(loss)}
    kept = {
        id(weight)
        for stack in stacks(model)
        if any(id(item) in used for item in stack.parameters())
        for weight in stack.parameters()
    }
    for weight in model.parameters():
        if id(weight) not in used | kept:
            weight.requires_grad_(False)


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """The tensors that the backward of a loss would give a gradient."""
    waiting = [loss.grad_fn]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        weight: Tensor | None = getattr(node, "variable", None)
        if weight is not None:
            yield weight
        waiting.extend(parent for parent, _ in node.next_functions)
