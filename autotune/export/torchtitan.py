"""Options of torchtitan, as a bash array to source.

Facts: torchtitan 0.3.0, config/configs.py, config/manager.py, distributed/activation_checkpoint.py
and trainer.py. Its main branch (commit b5bcd76, August 2026) has other options for the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autotune.backends.dialect import GRADIENT_CLIPPING
from autotune.export.exported import Exported, Note, expressed, inexpressible
from autotune.export.subject import Subject
from autotune.render import render
from autotune.setup import Precision, Setup

FILE_NAME = "torchtitan.flags"
VERSION = "0.3.0"
COMPUTES: Mapping[Precision, str] = {
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "fp16": "bfloat16",  # the nearest that there is
}
NO_FP16 = "torchtitan knows neither fp16 nor a loss scaler"


def export_torchtitan(subject: Subject) -> Exported:
    """``torchtitan.flags``."""
    setup = subject.setup
    notes = tuple(torchtitan_notes(setup))
    variables = {
        **setup.to_dict(),
        "provenance": subject.header(notes),
        "version": VERSION,
        "options": list(_options(setup)),
        "samples": setup.micro_batch * setup.gradient_accumulation,
        "checkpointing": _checkpointing(setup),
    }
    text = render(f"torchtitan/{FILE_NAME}.j2", variables, subject.templates)
    return Exported({FILE_NAME: text}, notes)


def _options(setup: Setup) -> Iterator[str]:
    yield "--training.dtype=float32"
    yield f"--training.mixed_precision_param={COMPUTES[setup.precision]}"
    yield "--training.mixed_precision_reduce=float32"
    yield f"--training.max_norm={GRADIENT_CLIPPING}"
    yield f"--training.local_batch_size={setup.micro_batch}"
    yield f"--parallelism.fsdp_reshard_after_forward={_reshards(setup)}"


def _reshards(setup: Setup) -> str:
    return "always" if setup.zero_stage == 3 else "never"


def _checkpointing(setup: Setup) -> str:
    return f"activation-checkpoint:{'full' if setup.activation_checkpointing else 'none'}"


def torchtitan_notes(setup: Setup) -> Iterator[Note]:
    """How the options say each knob."""
    yield _precision(setup)
    yield _wire(setup)
    yield expressed("zero_stage", f"--parallelism.fsdp_reshard_after_forward={_reshards(setup)}")
    yield expressed("activation_checkpointing", _checkpointing(setup))
    yield expressed("micro_batch", "--training.local_batch_size")
    yield expressed("gradient_accumulation", "--training.global_batch_size")
    if setup.loss_scale is not None:
        yield inexpressible("loss_scale", f"{NO_FP16}; bfloat16 needs none")


def _precision(setup: Setup) -> Note:
    if setup.precision == "tf32":
        variable = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
        return expressed("precision", f"{variable}, which {FILE_NAME} exports")
    option = f"--training.mixed_precision_param={COMPUTES[setup.precision]}"
    if setup.precision == "fp16":
        return inexpressible("precision", f"{NO_FP16}; {option} is the nearest")
    return expressed("precision", option)


def _wire(setup: Setup) -> Note:
    option = "--training.mixed_precision_reduce"
    if setup.grad_comm_dtype == "fp32":
        return expressed("grad_comm_dtype", f"{option}=float32")
    by_hand = f"torchtitan {VERSION} reduces in float32 alone"
    if setup.grad_comm_dtype == "bf16":
        # https://github.com/pytorch/torchtitan/pull/4597, opened on 11 September 2026 and merged.
        by_hand += f"; a version with its pull request 4597 takes {option}=bfloat16"
    return inexpressible("grad_comm_dtype", by_hand)
