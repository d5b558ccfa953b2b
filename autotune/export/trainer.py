"""What the dialects around transformers' Trainer share: arguments, and what lies beside them.

Facts of TrainingArguments: transformers 5.24.0, training_args.py and trainer.py, and the same in
5.16.1 unless said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.backends.accelerate import (
    FIRST_SCALE,
    GROWTH_INTERVAL,
    reduces_in,
)
from autotune.backends.dialect import GRADIENT_CLIPPING
from autotune.configs.values import AUTO
from autotune.export.accelerate import BY_INSTALL, by_install
from autotune.export.deepspeed import SIDECAR, sidecar
from autotune.export.deepspeed import notes as deepspeed_notes
from autotune.export.exported import Note, approximated, expressed
from autotune.export.fsdp import loss_scale
from autotune.export.own import MODULES, export_own
from autotune.export.subject import Subject
from autotune.setup import DTYPE_BYTES, Setup

OWNED = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
"""Keys of DeepSpeed's JSON that the Trainer fills in where they are "auto"; where they are not, it
compares them with its own arguments and refuses to train when they differ."""
BY_TRAINER = ("precision", "activation_checkpointing", "micro_batch", "gradient_accumulation")
"""Knobs that its arguments say beside DeepSpeed's JSON, too, or instead of it."""
MIB_OF_FLOAT32 = 2**20 // DTYPE_BYTES["fp32"]
"""Gradients in the unit of ``ddp_bucket_cap_mb``."""


def deepspeed_json(subject: Subject) -> str:
    """The JSON as it ran, but for what the Trainer owns."""
    config = _config(subject)
    filled = {key: AUTO if key in OWNED else value for key, value in config.items()}
    return json.dumps(filled, indent=2, ensure_ascii=False) + "\n"


def _config(subject: Subject) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(subject.config)
    return found


def beside(subject: Subject, notes: Sequence[Note]) -> dict[str, str]:
    """The files that the Trainer's arguments need beside them."""
    if subject.setup.backend == "deepspeed":
        return {subject.file_name: deepspeed_json(subject), SIDECAR: sidecar(subject, notes)}
    return dict(export_own(subject).files) if shimmed(subject.setup) else {}


def precision(setup: Setup) -> dict[str, bool]:
    """Every switch, as some defaults are on: bf16 of TRL, tf32 of axolotl."""
    return {name: setup.precision == name for name in ("bf16", "fp16", "tf32")}


def clipping(subject: Subject) -> dict[str, float]:
    """``max_grad_norm`` as it was measured; nothing where the user's own script says it."""
    if subject.setup.backend == "deepspeed":
        norm = _config(subject).get("gradient_clipping")
        return {"max_grad_norm": norm} if isinstance(norm, int | float) else {}
    return {} if subject.script is not None else {"max_grad_norm": GRADIENT_CLIPPING}


def batches(setup: Setup) -> dict[str, int]:
    """Samples of a backward call on a rank, and backward calls of a step."""
    return {
        "per_device_train_batch_size": setup.micro_batch,
        "gradient_accumulation_steps": setup.gradient_accumulation,
    }


def of_ddp(subject: Subject) -> dict[str, Any]:
    """The arguments of DistributedDataParallel."""
    megabytes = bucket_cap_mb(subject.setup)
    found: dict[str, Any] = {} if megabytes is None else {"ddp_bucket_cap_mb": megabytes}
    if subject.script is None:
        # The Trainer's own default is a search in every step, which was not measured.
        found["ddp_find_unused_parameters"] = False
    return found


def bucket_cap_mb(setup: Setup) -> int | None:
    """The bucket in MiB of float32 gradients, if it is whole ones: a command line takes no others.

    A gradient is one element on the wire, whatever its dtype there.
    """
    if setup.backend != "ddp" or setup.bucket_bytes is None:
        return None
    megabytes, left = divmod(
        setup.bucket_bytes, MIB_OF_FLOAT32 * DTYPE_BYTES[setup.grad_comm_dtype]
    )
    return None if left or megabytes == 0 else megabytes


def shimmed(setup: Setup) -> tuple[str, ...]:
    """Knobs of an FSDP2 or DDP setup that only the backend's module can say."""
    if setup.backend not in MODULES:
        return ()
    scale = setup.loss_scale
    unsaid = {
        "grad_comm_dtype": setup.grad_comm_dtype != reduces_in(setup),
        "bucket_bytes": setup.bucket_bytes is not None and bucket_cap_mb(setup) is None,
        "loss_scale": scale is not None
        and (scale.initial_power, scale.window) != (FIRST_SCALE, GROWTH_INTERVAL),
    }
    return tuple(knob for knob in BY_INSTALL if unsaid.get(knob))


def trainer_notes(setup: Setup, said: Mapping[str, str], install: str = "") -> Iterator[Note]:
    """How the Trainer's arguments, with what lies beside them, say each knob.

    Args:
        setup: The setup.
        said: Where the dialect says a knob in its own words.
        install: What makes a training call the module's ``install()``; the line for a script of
            the user's own if empty.
    """
    if setup.backend == "deepspeed":
        yield from _beside_json(setup, said)
        return
    installed = shimmed(setup)
    for note in _plain(setup, said):
        by_module = note.knob in installed and note.status == "expressed"
        yield expressed(note.knob, install or by_install(setup)) if by_module else note


def _beside_json(setup: Setup, said: Mapping[str, str]) -> Iterator[Note]:
    for note in deepspeed_notes(setup):
        if note.knob in BY_TRAINER:
            yield expressed(note.knob, said[note.knob])
        else:
            yield Note(note.knob, note.status, f"{note.text} in ds_config.json")


def _plain(setup: Setup, said: Mapping[str, str]) -> Iterator[Note]:
    """Of an FSDP2 or DDP setup: as if the arguments had to do alone, where they can."""
    yield expressed("precision", said["precision"])
    yield expressed("grad_comm_dtype", f"{reduces_in(setup)} follows from the precision")
    whole = "DDP keeps everything whole on every rank"
    yield expressed("zero_stage", said["zero_stage"] if setup.backend == "fsdp" else whole)
    if setup.bucket_bytes is not None:
        yield expressed("bucket_bytes", "ddp_bucket_cap_mb")
    for knob in ("activation_checkpointing", "micro_batch", "gradient_accumulation"):
        yield expressed(knob, said[knob])
    if setup.loss_scale is not None:
        yield _loss_scale(setup)


def _loss_scale(setup: Setup) -> Note:
    assert setup.loss_scale is not None
    if loss_scale(setup.loss_scale).status == "expressed":
        return expressed("loss_scale", "torch.amp.GradScaler's own")
    missing = "torch.amp.GradScaler, which the Trainer uses, has neither hysteresis nor a floor"
    return approximated("loss_scale", missing)


def in_words(setup: Setup) -> str:
    """Which switches are on, and what they need."""
    if setup.precision == "tf32":
        return "tf32: true, which transformers refuses on a GPU older than Ampere"
    return f"{setup.precision}: true" if setup.precision != "fp32" else "bf16, fp16, tf32: false"


def in_float32(setup: Setup) -> str:
    """What a narrow precision asks of whoever loads the model."""
    # from_pretrained of transformers 5 takes the dtype of the checkpoint, and DDP reduces the
    # gradients of such weights in it; DeepSpeed and FSDP2 by accelerate make float32 ones.
    narrow = setup.backend != "deepspeed" and setup.precision in ("bf16", "fp16")
    return "load your model with dtype=torch.float32, as it was measured" if narrow else ""


def by_script(setup: Setup, start: str) -> str:
    """Of a training that has no script of the user's own: the exported one, by its command."""
    if setup.backend not in MODULES:
        return ""
    return f"start `{start}`: it calls `{MODULES[setup.backend]}.install()` first"
