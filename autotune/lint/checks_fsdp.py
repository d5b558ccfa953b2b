"""What ``fsdp_config`` of transformers does that it should not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.configs.huggingface_keys import FSDP, FSDP1, FSDP_DROPPED
from autotune.configs.names import closest
from autotune.configs.values import as_int
from autotune.lint.edits import insert, put, remove, rename
from autotune.lint.finding import About, Check, Finding, found
from autotune.lint.versions import within

Config = Mapping[str, Any]
PREFIX = "fsdp_"
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
HARMLESS = ("full_shard", "auto_wrap")


def plain(key: str) -> str:
    """The key as transformers names it."""
    return key.removeprefix(PREFIX)


def version_of(values: Config, about: About) -> int | None:
    """The version of FSDP; transformers 4 has 1 only."""
    said = {plain(key): value for key, value in values.items()}.get("version")
    return as_int(said) if said is not None else default_version(about)


def default_version(about: About) -> int:
    """Where the file says none."""
    known = about.versions.get("transformers")
    return 1 if known is not None and within(known, "<5") else 2


def dropped(values: Config, about: About) -> Iterator[Finding]:
    """Keys that transformers picks up nowhere."""
    version = version_of(values, about)
    said = {plain(key) for key in values}
    for key in values:
        name = plain(key)
        if name in FSDP or (name in FSDP1 and version == 1):
            continue
        if name in FSDP1:
            text = f"{key} does nothing: version {version} has no such switch"
            yield found("hf-fsdp-key-dropped", (key,), text, remove(key), inert=True)
            continue
        why, meant = FSDP_DROPPED.get(name, (None, None))
        guess = closest(name, FSDP | FSDP1) if why is None else meant
        hint = why or "transformers has no such key" + (f"; did you mean {guess}?" if guess else "")
        edit = rename((key,), guess) if guess and guess not in said else remove(key)
        rule = "misspelt-key" if guess and why is None else "hf-fsdp-key-dropped"
        yield found(rule, (key,), f"{key} does nothing: {hint}", edit, inert=True)


def version(values: Config, about: About) -> Iterator[Finding]:
    """Which FSDP it is."""
    if "version" not in {plain(key) for key in values}:
        today = default_version(about)
        text = "version is absent: 2 with transformers 5, 1 with transformers 4 and accelerate"
        yield found("fsdp-version-absent", (), text, insert(("version",), today))


def strategy(values: Config, about: About) -> Iterator[Finding]:
    """A sharding strategy in the place of a switch."""
    spelt = {plain(key): key for key in values}
    key = spelt.get("reshard_after_forward")
    if key is None:
        return
    word = str(values[key]).lower()
    if version_of(values, about) == 1:
        text = f"{key} is {values[key]}: version 1 shards fully, whatever it says"
        yield found("fsdp1-reshard", (key,), text)
    elif word.startswith("hybrid"):
        text = f"{key} is {values[key]}, at which version 2 stops"
        yield found("fsdp2-hybrid", (key,), text)
    elif word in STRATEGIES:
        text = f"{key} is {values[key]}, where version 2 asks for true or false"
        yield found("wrong-type", (key,), text, put((key,), word == "full_shard"))


def prefetch(values: Config, about: About) -> Iterator[Finding]:
    """None, where nothing is said."""
    said = {plain(key) for key in values}
    if version_of(values, about) == 1 and "backward_prefetch" not in said:
        text = "backward_prefetch is absent: nothing is prefetched in the backward"
        edit = insert(("backward_prefetch",), "BACKWARD_PRE")
        yield found("fsdp1-prefetch-off", (), text, edit)


def words(fsdp: Any, values: Config, about: About) -> Iterator[Finding]:
    """The words of old in ``fsdp``.

    Args:
        fsdp: What stands there.
        values: ``fsdp_config`` beside it.
        about: What is known.
    """
    said = [str(word).lower() for word in (fsdp.split() if isinstance(fsdp, str) else fsdp)]
    number = version_of(values, about)
    text = f"fsdp is {' '.join(said)}"
    if number == 2 and any(word.startswith("hybrid") for word in said):
        yield found("fsdp2-hybrid", ("fsdp",), f"{text}, at which version 2 stops")
    elif number == 1 and any(word in STRATEGIES[1:] for word in said) and _five(about):
        yield found("fsdp1-reshard", ("fsdp",), f"{text}: version 1 shards fully all the same")
    elif _five(about):
        plainly = all(word in HARMLESS for word in said)
        edits = (put(("fsdp",), True),) if plainly else ()
        hint = f"{text}, words of old: write true, and the rest in fsdp_config"
        yield found("old-name", ("fsdp",), hint, *edits)


def _five(about: About) -> bool:
    known = about.versions.get("transformers")
    return known is None or within(known, ">=5")


CHECKS: tuple[Check, ...] = (dropped, version, strategy, prefetch)
