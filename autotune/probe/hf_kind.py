"""What a model of transformers is trained for, out of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import UsageError
from autotune.workload import HfTask

# Names that say nothing of a task: those of a bare model and of the first training.
PLAIN = ("Model", "ForPreTraining", "LMHeadModel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One task.

    Attributes:
        auto: The class of transformers that builds models for it.
        mapping: Name of the table from a model type to the names of classes for it.
    """

    auto: str
    mapping: str


KINDS: Mapping[HfTask, Kind] = {
    "seq2seq-lm": Kind(
        auto="AutoModelForSeq2SeqLM", mapping="MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"
    ),
    "causal-lm": Kind(auto="AutoModelForCausalLM", mapping="MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    "masked-lm": Kind(auto="AutoModelForMaskedLM", mapping="MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    "image-classification": Kind(
        auto="AutoModelForImageClassification",
        mapping="MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    ),
}
"""In the order in which a class that serves several tasks, such as BART's, is taken."""


def choose_task(config: Any, asked: HfTask | None) -> HfTask:
    """The task that is asked for, or the one that the configuration is of.

    Args:
        config: Of transformers.
        asked: By the sweep file.

    Raises:
        UsageError: transformers has no such model for the task, or several tasks are as likely.
    """
    there = _classes(config.model_type)
    if asked is not None:
        if asked not in there:
            raise UsageError(
                f"transformers has no model of type {config.model_type!r} for {asked}; "
                f"{_allowed(there)}."
            )
        return asked
    for architecture in config.architectures or ():
        for task, names in there.items():
            if architecture in names:
                return task
    others = [name for name in config.architectures or () if not name.endswith(PLAIN)]
    guess = None if others else _guess(config, there)
    if guess is None:
        said = f"architectures {', '.join(config.architectures or ()) or 'none'}"
        raise UsageError(
            f"What the model of type {config.model_type!r} is trained for does not follow from its "
            f"configuration ({said}); give task. {_allowed(there)}."
        )
    return guess


def _classes(model_type: str) -> dict[HfTask, tuple[str, ...]]:
    """The classes for a type of model, by task; in the order of `KINDS`."""
    from transformers.models.auto import modeling_auto

    found: dict[HfTask, tuple[str, ...]] = {}
    for task, kind in KINDS.items():
        names = getattr(modeling_auto, kind.mapping).get(model_type, ())
        if names:
            found[task] = (names,) if isinstance(names, str) else tuple(names)
    return found


def _guess(config: Any, there: Mapping[HfTask, tuple[str, ...]]) -> HfTask | None:
    if len(there) == 1:
        return next(iter(there))
    if "seq2seq-lm" in there and config.is_encoder_decoder:
        return "seq2seq-lm"
    if "image-classification" in there and hasattr(config, "image_size"):
        return "image-classification"
    if {"causal-lm", "masked-lm"} == set(there):
        # Such as BERT: an encoder, unless its configuration makes a decoder of it.
        return "causal-lm" if getattr(config, "is_decoder", False) else "masked-lm"
    return None


def _allowed(there: Mapping[HfTask, tuple[str, ...]]) -> str:
    if there:
        return f"Allowed here: {', '.join(there)}"
    return (
        f"Supported are models for {', '.join(KINDS)}; give any other as python: "
        "package.module:factory"
    )
