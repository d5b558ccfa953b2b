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
        optional: Those that it asks where they are installed; facts that are pinned to a version
            stand in for them elsewhere.
    """

    module: str
    function: str
    packages: tuple[str, ...]
    optional: tuple[str, ...] = ()


READERS: Mapping[str, Reader] = {
    "deepspeed": Reader("autotune.consumer.deepspeed", "read", ("torch", "deepspeed")),
    "fsdp": Reader("autotune.consumer.modules", "read_fsdp", ("torch",)),
    "ddp": Reader("autotune.consumer.modules", "read_ddp", ("torch",)),
    "accelerate": Reader("autotune.consumer.accelerate", "read", ("torch", "accelerate")),
    "accelerate-fsdp1": Reader(
        "autotune.consumer.accelerate_fsdp1", "read", ("torch", "accelerate")
    ),
    "lightning": Reader("autotune.consumer.lightning", "read", ("torch", "lightning")),
    "huggingface": Reader(
        "autotune.consumer.huggingface", "read", ("torch", "transformers", "accelerate")
    ),
    "torchtitan": Reader("autotune.consumer.torchtitan", "read", (), ("torchtitan",)),
    "trl": Reader(
        "autotune.consumer.trl", "read", ("torch", "transformers", "accelerate"), ("trl",)
    ),
    "axolotl": Reader(
        "autotune.consumer.axolotl", "read", ("torch", "transformers", "accelerate"), ("axolotl",)
    ),
    "llamafactory": Reader(
        "autotune.consumer.llamafactory",
        "read",
        ("torch", "transformers", "accelerate"),
        ("llamafactory",),
    ),
    "launch": Reader("autotune.consumer.launch", "read", ("torch",)),
    "kubeflow": Reader("autotune.consumer.kubeflow", "read", ("torch", "pyyaml")),
    "perturb-deepspeed": Reader(
        "autotune.consumer.perturb_deepspeed", "read", ("torch", "deepspeed")
    ),
    "perturb-accelerate": Reader(
        "autotune.consumer.perturb_accelerate", "read", ("torch", "accelerate")
    ),
    "perturb-huggingface": Reader(
        "autotune.consumer.perturb_huggingface", "read", ("torch", "transformers", "accelerate")
    ),
    "perturb-fsdp": Reader(
        "autotune.consumer.perturb_huggingface",
        "read_fragment",
        ("torch", "transformers", "accelerate"),
    ),
}
