"""The DeepSpeed configuration that was measured, and a sidecar that says where it is from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from autotune.configs.values import AUTO
from autotune.export.exported import Exported, Note, approximated
from autotune.export.subject import Subject
from autotune.setup import DTYPE_BYTES, Setup

SIDECAR = "ds_config.provenance.json"
BATCH = {
    "micro_batch": "train_micro_batch_size_per_gpu",
    "gradient_accumulation": "gradient_accumulation_steps",
}
TF32_BY_HAND = (
    "the JSON cannot switch TF32 on: call torch.set_float32_matmul_precision('high') before "
    "training, or export with --to launch"
)
CHECKPOINTING_BY_HAND = (
    "the JSON cannot switch it on: let every layer of your model recompute its forward "
    "(torch.utils.checkpoint)"
)


def export_deepspeed(subject: Subject) -> Exported:
    """The JSON, byte for byte as it ran, with its sidecar."""
    # JSON has no comments, so where the configuration is from stands beside it.
    found = tuple(left_open(notes(subject.setup), subject))
    return Exported({subject.file_name: subject.config, SIDECAR: sidecar(subject, found)}, found)


def sidecar(subject: Subject, found: Sequence[Note]) -> str:
    """Where a JSON file is from and how well it says each knob, as JSON."""
    about = {
        **subject.provenance.to_dict(),
        "setup": subject.setup.to_dict(),
        "notes": [asdict(note) for note in found],
    }
    return json.dumps(about, indent=2) + "\n"


def left_open(found: Iterable[Note], subject: Subject) -> Iterator[Note]:
    """The notes, where the user's own JSON leaves the batch to their Trainer by ``"auto"``."""
    config = json.loads(subject.config)
    for note in found:
        key = BATCH.get(note.knob)
        if key is not None and config.get(key) == AUTO:
            value = subject.setup.to_dict()[note.knob]
            text = f'{key} is "auto": your script says {value} to whoever fills it in'
            yield approximated(note.knob, text)
        else:
            yield note


def without_auto(subject: Subject) -> str:
    """The JSON for a consumer that fills nothing in; the text that ran where that is the same."""
    config = json.loads(subject.config)
    plain = _plain(config)
    if plain == config:
        return subject.config
    knobs = subject.setup.to_dict()
    filled = {key: knobs[knob] for knob, key in BATCH.items() if config.get(key) == AUTO}
    return json.dumps({**filled, **plain}, indent=2, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _plain(item) for key, item in value.items() if item != AUTO}


def notes(setup: Setup) -> Iterator[Note]:
    """How the JSON says each knob."""
    yield _precision(setup)
    yield Note("grad_comm_dtype", "expressed", "communication_data_type")
    yield Note("zero_stage", "expressed", "zero_optimization.stage")
    if setup.bucket_bytes is not None:
        yield _bucket(setup, setup.bucket_bytes)
    if setup.overlap_comm is not None:
        yield Note("overlap_comm", "expressed", "zero_optimization.overlap_comm")
    if setup.activation_checkpointing:
        yield Note("activation_checkpointing", "cannot be expressed", CHECKPOINTING_BY_HAND)
    else:
        yield Note("activation_checkpointing", "expressed", "off, unless your model does it")
    yield Note("micro_batch", "expressed", "train_micro_batch_size_per_gpu")
    yield Note("gradient_accumulation", "expressed", "gradient_accumulation_steps")
    if setup.loss_scale is not None:
        yield Note("loss_scale", "expressed", "fp16")


def _precision(setup: Setup) -> Note:
    if setup.precision == "tf32":
        return Note("precision", "cannot be expressed", TF32_BY_HAND)
    return Note("precision", "expressed", "fp16.enabled and bf16.enabled")


def _bucket(setup: Setup, bucket_bytes: int) -> Note:
    size = DTYPE_BYTES[setup.grad_comm_dtype]
    elements, left = divmod(bucket_bytes, size)
    text = (
        f"zero_optimization.reduce_bucket_size: {elements} elements of {size} bytes "
        f"({setup.grad_comm_dtype})"
    )
    return Note("bucket_bytes", "approximated" if left else "expressed", text)
