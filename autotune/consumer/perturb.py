"""Which keys of a file matter to its consumer: it is watched while each is changed.

A key is inert where every value that was tried, and its absence, leaves what the consumer makes of
the file as it is. One that makes the consumer stop is not: it is checked, at least.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Config = dict[str, Any]
Path = Sequence[str]
Observe = Callable[[Config], Any]

WORDS: tuple[tuple[str, ...], ...] = (
    ("no", "fp16", "bf16"),
    ("fp32", "fp16", "bf16"),
    ("none", "cpu", "nvme"),
    ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"),
    ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard"),
    ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
    ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    ("FULL_STATE_DICT", "SHARDED_STATE_DICT"),
    ("static", "c10d"),
    ("true", "false"),
    ("True", "False"),
)
"""Words of which one may stand for another. A word that is none would only be refused."""


def perturb(config: Config, keys: Sequence[Path], observe: Observe) -> dict[str, Any]:
    """What became of every key.

    Args:
        config: The parsed file.
        keys: Paths of the keys to change.
        observe: What the consumer makes of a file, comparable; it may raise.

    Returns:
        The consumer's words in ``refused`` where it refuses the file as it is, else None; the paths
        of ``inert`` keys; how many files were ``tried``.
    """
    before = _outcome(config, observe)
    if before[0] == "refused":
        return {"refused": before[1], "inert": [], "tried": 1}
    inert, tried = [], 1
    for key in keys:
        alive = False
        for changed in variants(config, key):
            tried += 1
            if _outcome(changed, observe) != before:
                alive = True
                break
        if not alive:
            inert.append(list(key))
    return {"refused": None, "inert": inert, "tried": tried}


def without(config: Config, keys: Sequence[Path]) -> Config:
    """The file without some keys."""
    found = copy.deepcopy(config)
    for key in keys:
        inner = _inner(found, key)
        if inner is not None:
            inner.pop(key[-1], None)
    return found


def variants(config: Config, key: Path) -> Iterator[Config]:
    """The file without a key, and with other values of it."""
    yield without(config, [key])
    inner = _inner(config, key)
    assert inner is not None
    for value in other_values(inner[key[-1]]):
        changed = copy.deepcopy(config)
        found = _inner(changed, key)
        assert found is not None
        found[key[-1]] = value
        yield changed


def other_values(value: Any) -> Iterator[Any]:
    """Values that could stand in place of one, of its own kind first."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, 2 * value + 2, *((value / 2, 0) if value else ()))
    elif isinstance(value, str):
        yield from _other_words(value)
    elif isinstance(value, list):
        yield [*value, *(value[:1] or ["x"])]
        if value:
            yield []
    elif isinstance(value, Mapping):
        yield {**value, "x": 1}
    else:
        yield from (True, 1, "x")


def _other_words(value: str) -> Iterator[Any]:
    if value == "auto":
        yield from (2, True, False, 0.5, "cpu")
        return
    known = {word for words in WORDS if value in words for word in words}
    if known:
        yield from sorted(known - {value})
    else:
        yield from (f"{value}x", "1", 2)


def _inner(config: Config, key: Path) -> Config | None:
    """The mapping that holds a key."""
    for name in key[:-1]:
        inner = config.get(name)
        if not isinstance(inner, dict):
            return None
        config = inner
    return config


def _outcome(config: Config, observe: Observe) -> tuple[str, Any]:
    try:
        return "read", observe(copy.deepcopy(config))
    except (Exception, SystemExit) as error:  # whatever somebody else's parser raises
        return "refused", f"{type(error).__name__}: {error}"


def plain(value: Any) -> Any:
    """Anything as what can be compared: fields of objects, and names of functions."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if type(value).__module__.split(".")[0] in ("deepspeed", "accelerate"):
        return {"": type(value).__qualname__, **plain(vars(value))}
    return repr(value)
