"""A fixed list of setups, exported and read by the consumer of a dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.consult import Answer, Question, consult
from autotune.export import Exported, compare, export, write
from autotune.setup import Backend, LossScale, Setup
from autotune.wiring.exports import unmeasured
from tests.build import make_setup

SCALE = LossScale(initial_power=11, window=333, hysteresis=1, minimum=0)
ZERO_SCALE = LossScale(initial_power=11, window=333, hysteresis=3, minimum=2)
# A scaler that nobody has to be told of: torch's own start and window.
OWN_SCALE = LossScale(initial_power=16, window=2000, hysteresis=1, minimum=0)


def _made(backend: Backend, *rows: tuple[Any, ...], **others: Any) -> tuple[Setup, ...]:
    names = ("precision", "grad_comm_dtype", "zero_stage", "activation_checkpointing", "loss_scale")
    return tuple(
        make_setup(backend=backend, **dict(zip(names, row, strict=False)), **others) for row in rows
    )


SAMPLED: Mapping[Backend, tuple[Setup, ...]] = {
    "fsdp": (
        *_made(
            "fsdp",
            *(("fp32", "fp32", 2), ("fp32", "bf16", 3, True), ("fp32", "fp16", 3)),
            *(("tf32", "fp32", 3, True), ("bf16", "bf16", 3, True), ("bf16", "fp32", 2)),
            *(("bf16", "fp16", 2, True), ("fp16", "fp16", 2, False, OWN_SCALE)),
            *(("fp16", "fp32", 3, True, SCALE), ("fp16", "bf16", 3, False, SCALE)),
            *(("fp16", "fp16", 3, False, ZERO_SCALE),),
        ),
        *_made("fsdp", ("bf16", "bf16", 3), micro_batch=3, gradient_accumulation=1),
    ),
    "ddp": (
        *_made(
            "ddp",
            *(("fp32", "fp32", 0), ("fp32", "bf16", 0, True), ("tf32", "fp32", 0)),
            *(("bf16", "bf16", 0, True), ("bf16", "fp32", 0), ("fp16", "fp16", 0, True, SCALE)),
            *(("fp16", "fp32", 0, False, OWN_SCALE), ("fp16", "fp16", 0, False, ZERO_SCALE)),
        ),
        *_made("ddp", ("bf16", "fp16", 0), bucket_bytes=25 * 2**20, gradient_accumulation=1),
    ),
    "deepspeed": (
        *_made(
            "deepspeed",
            *(("fp32", "fp32", 1), ("fp32", "bf16", 2, True), ("tf32", "fp32", 3)),
            *(("bf16", "bf16", 3, True), ("bf16", "fp32", 2), ("fp16", "fp16", 1)),
            *(("fp16", "fp32", 3, True, ZERO_SCALE),),
        ),
        *_made("deepspeed", ("bf16", "bf16", 0), bucket_bytes=None),
        *_made("deepspeed", ("bf16", "fp32", 1), bucket_bytes=4001, overlap_comm=True),
        *_made("deepspeed", ("fp16", "bf16", 2), micro_batch=3, gradient_accumulation=1),
    ),
}
"""Backend x precision x wire x stage x checkpointing x loss scale, each value more than once."""


def read(
    to: str,
    setups: Sequence[Setup],
    folder: Path,
    *,
    reader: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[tuple[Setup, Exported, Answer]]:
    """Every setup in the dialect ``to``, and what a reader makes of the files.

    Args:
        to: The dialect.
        setups: What it has to say.
        folder: For the files.
        reader: Who reads them. Default: the reader of the dialect's name.
        options: Arguments of the reader.
    """
    made = []
    for number, setup in enumerate(setups):
        exported = export(unmeasured(setup, None), to)
        write(exported, folder / str(number))
        made.append((setup, exported))
    questions = [
        Question(reader or to, folder / str(number), options or {}) for number in range(len(made))
    ]
    answers = consult(questions)
    return [(*item, answer) for item, answer in zip(made, answers, strict=True)]


def faults(found: Sequence[tuple[Setup, Exported, Answer]]) -> Iterator[str]:
    """Everything that is refused, or seen otherwise than its note promises."""
    for setup, exported, answer in found:
        if answer.refused is not None or answer.missing:
            yield f"{setup.key}: {answer.refused or answer.missing}"
        for item in compare(setup, exported.notes, answer.effective):
            yield f"{setup.key}: {item}"


def knobs_of(setup: Setup) -> list[str]:
    """The knobs that have to have a note each, in order of their names."""
    knobs = setup.to_dict()
    return sorted(name for name in knobs if name != "backend" and knobs[name] is not None)
