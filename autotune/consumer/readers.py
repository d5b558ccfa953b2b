"""The readers, by name, and the packages that each of them asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reader:
    """How the files of one dialect are read by those who consume them.

    Attributes:
        module: Module of this island.
        function: Takes the folder of the files and returns the effective value of every knob that
            the consumer determines, by name and as JSON types.
        packages: Distributions that it needs.
    """

    module: str
    function: str
    packages: tuple[str, ...]


READERS: Mapping[str, Reader] = {
    "deepspeed": Reader("autotune.consumer.deepspeed", "read", ("torch", "deepspeed")),
    "fsdp": Reader("autotune.consumer.modules", "read_fsdp", ("torch",)),
    "ddp": Reader("autotune.consumer.modules", "read_ddp", ("torch",)),
    "accelerate": Reader("autotune.consumer.accelerate", "read", ("torch", "accelerate")),
    "accelerate-fsdp1": Reader(
        "autotune.consumer.accelerate_fsdp1", "read", ("torch", "accelerate")
    ),
    "torchtitan": Reader("autotune.consumer.torchtitan", "read", ()),
    "lightning": Reader("autotune.consumer.lightning", "read", ("torch", "lightning")),
    "launch": Reader("autotune.consumer.launch", "read", ("torch",)),
    "kubeflow": Reader("autotune.consumer.kubeflow", "read", ("torch", "pyyaml")),
}
