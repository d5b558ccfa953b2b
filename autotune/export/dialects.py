"""The dialects, by the name that ``--to`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.export.accelerate import export_accelerate
from autotune.export.accelerate_fsdp1 import export_accelerate_fsdp1
from autotune.export.axolotl import export_axolotl
from autotune.export.ddp import export_ddp
from autotune.export.deepspeed import export_deepspeed
from autotune.export.exported import Exported
from autotune.export.fsdp import export_fsdp
from autotune.export.huggingface import export_huggingface
from autotune.export.kubeflow import export_kubeflow
from autotune.export.lightning import export_lightning
from autotune.export.llamafactory import export_llamafactory
from autotune.export.script import export_start
from autotune.export.slurm import export_slurm
from autotune.export.subject import Subject
from autotune.export.torchtitan import export_torchtitan
from autotune.export.trl import export_trl
from autotune.setup import BACKENDS, Backend


@dataclass(frozen=True, slots=True)
class Dialect:
    """One value of ``--to``.

    Attributes:
        title: Who reads it, for people.
        backends: Whose setups it can say.
        export: Makes the files of a setup.
        reader: Which reader of `autotune.consumer.readers` proves the files; None for none.
    """

    title: str
    backends: tuple[Backend, ...]
    export: Callable[[Subject], Exported]
    reader: str | None = None


DIALECTS: Mapping[str, Dialect] = {
    "deepspeed": Dialect("DeepSpeed's JSON", ("deepspeed",), export_deepspeed, "deepspeed"),
    "fsdp": Dialect("a Python module for FSDP2", ("fsdp",), export_fsdp, "fsdp"),
    "ddp": Dialect("a Python module for DDP", ("ddp",), export_ddp, "ddp"),
    "accelerate": Dialect(
        "accelerate's configuration file", BACKENDS, export_accelerate, "accelerate"
    ),
    "accelerate-fsdp1": Dialect(
        "accelerate's configuration file for FSDP1",
        ("fsdp",),
        export_accelerate_fsdp1,
        "accelerate-fsdp1",
    ),
    "torchtitan": Dialect("options of torchtitan", ("fsdp",), export_torchtitan, "torchtitan"),
    "lightning": Dialect(
        "a Python module with the arguments of Lightning's Trainer",
        BACKENDS,
        export_lightning,
        "lightning",
    ),
    "huggingface": Dialect(
        "arguments of transformers' Trainer", BACKENDS, export_huggingface, "huggingface"
    ),
    "trl": Dialect("a file for `trl sft --config`", BACKENDS, export_trl, "trl"),
    "axolotl": Dialect("a fragment for axolotl", BACKENDS, export_axolotl, "axolotl"),
    "llamafactory": Dialect(
        "a fragment for LLaMA-Factory", BACKENDS, export_llamafactory, "llamafactory"
    ),
    "launch": Dialect(
        "launch.sh for torchrun, accelerate and the deepspeed launcher",
        BACKENDS,
        export_start,
        "launch",
    ),
    "slurm": Dialect("a script for Slurm's sbatch", BACKENDS, export_slurm, "launch"),
    "kubeflow": Dialect("a TrainJob of Kubeflow", BACKENDS, export_kubeflow, "kubeflow"),
}


def fitting(backend: Backend) -> tuple[str, ...]:
    """Names of the dialects that can say setups of a backend."""
    return tuple(name for name, dialect in DIALECTS.items() if backend in dialect.backends)
