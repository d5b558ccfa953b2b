"""What every backend says about its setups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.setup import Setup
from autotune.space import Restriction

GRADIENT_CLIPPING = 1.0
"""Largest gradient norm in every setup, so that all of them do the same work in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How the setups of one backend are written down.

    Attributes:
        template: Name of the template, relative to a template folder.
        file_name: What the rendered file is called where it is exported.
        variables: What the template may use: every knob of the setup under its own name, and
            what the backend derives from them.
        restrictions: Setups that the backend cannot train.
    """

    template: str
    file_name: str
    variables: Callable[[Setup], dict[str, object]]
    restrictions: tuple[Restriction, ...]
