"""What became of a user's own configuration file: it is understood, or refused with reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["deepspeed", "accelerate"]
Ignored = Literal["unknown", "misplaced", "renamed", "unread", "overruled"]
Stops = Literal["unknown", "removed", "type", "placeholder", "auto", "refused", "batch"]
Cause = Stops | Literal["precision", "unquoted", "doubled", "unsafe", "unsaid"]


@dataclass(frozen=True, slots=True)
class Inert:
    """A key that does nothing where it stands.

    Attributes:
        key: Dotted name, such as ``zero_optimization.overlap_com``.
        why: Why it does nothing, and what was probably meant.
        cause: ``unknown`` (nobody has such a key), ``misplaced`` (read in another block only),
            ``renamed`` (an old name), ``unread`` (the parser reads it over where it stands) or
            ``overruled`` (it is parsed, and then not obeyed).
        meant: The key that was probably meant, a dotted name too.
    """

    key: str
    why: str
    cause: Ignored = "unread"
    meant: str | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a configuration cannot be a baseline.

    Attributes:
        key: Dotted name of the key at fault; empty for the whole file.
        text: Names the key, its value, and why.
        cause: ``unsaid`` is what no setup of autotune can say; ``unsafe`` is what the library that
            the file is for accepts and should not. It ends with an error at all others: a key that
            is ``unknown`` or ``removed``, a value of the wrong ``type``, a ``placeholder``, an
            ``auto`` that nobody fills in, a combination that is ``refused``, a ``batch`` that does
            not divide, two kinds of ``precision``, a word that is ``unquoted``, a key ``doubled``
            in the file that this one names.
        meant: The key that was probably meant.
    """

    key: str
    text: str
    cause: Cause
    meant: str | None = None


def texts(faults: Iterable[Fault]) -> tuple[str, ...]:
    """The reasons of a refusal."""
    return tuple(fault.text for fault in faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """A configuration of which every key is known: a knob, carried through, or inert.

    Attributes:
        kind: Whose file it is.
        knobs: Value of each knob that the file determines, named as `make_baseline` takes them.
            ``bucket_bytes`` is None where the file leaves the bucket to the script.
        bucket_elements: Gradient elements of a bucket, which are bytes once the dtype on the wire
            is known; None where the file does not say them.
        gradient_accumulation: Backward calls a step, where the file determines them.
        open: Knobs that the file leaves open, each with the reason.
        config: The parsed file.
        deepspeed: DeepSpeed's part of it, for `carry`: the file itself, the file that it names, or
            what accelerate makes of its keys. None where it trains without DeepSpeed.
        auto: Whether keys are left to the script's own arguments (``"auto"``).
        inert: Keys that do nothing.
        notes: What is worth to know about the file, one sentence each.
        script_only: Keys that only the script's own launcher obeys, and what they are; autotune's
            own trainer does not.
    """

    kind: Kind
    knobs: Mapping[str, Any]
    bucket_elements: int | None
    gradient_accumulation: int | None
    open: Mapping[str, str]
    config: Mapping[str, Any]
    deepspeed: Mapping[str, Any] | None
    auto: bool
    inert: tuple[Inert, ...] = ()
    notes: tuple[str, ...] = ()
    script_only: tuple[Inert, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A configuration that cannot be a baseline.

    Attributes:
        reasons: Each names the key, its value, and why.
        inert: Keys that do nothing, as far as the file was read.
    """

    reasons: tuple[str, ...]
    inert: tuple[Inert, ...] = field(default=())
