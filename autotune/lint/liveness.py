"""Asks the installed consumers which keys of a file matter, and compares that with the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.configs.accelerate_keys import TPU
from autotune.configs.deepspeed_inert import COMMENTS
from autotune.consult import Answer, Question
from autotune.lint.checks_accelerate import NAMED
from autotune.lint.edits import remove
from autotune.lint.finding import Finding, found
from autotune.lint.kinds import Kind
from autotune.lint.places import KeyPath, dotted, get

PARTS: Mapping[Kind, tuple[str, ...]] = {
    "deepspeed": (),
    "accelerate": (),
    "fsdp": (),
    "huggingface": ("fsdp_config", "deepspeed"),
}
"""Blocks whose keys are changed; an empty one means the whole file. Every other argument of
transformers is a field of its own."""
BREAKING = (
    *("unknown-key", "ds-removed-key", "wrong-type", "unfilled-placeholder"),
    *(
        "acc-doubled",
        "acc-no-unquoted",
        "refused-combination",
        "fp16-and-bf16",
        "ds-batch-contradiction",
    ),
    *("ds-min-scale-zero", "hf-deepspeed-mismatch", "fsdp2-hybrid"),
)
"""Rules of what the consumer is known to refuse: it is asked about the rest of the file."""
HARDWARE: tuple[KeyPath, ...] = (("aio", "use_gds"),)
"""Keys at which a parser asks the machine, which may be another one than the training's."""
ELSEWHERE: Mapping[str, str] = {
    "data_parallel_size": "deepspeed.initialize reads it for its device mesh",
    "vocabulary_size": "only a warning comes of it",
    "inference": "deepspeed.init_inference reads it",
}
"""Keys of DeepSpeed that others than ``DeepSpeedConfig`` read."""
ONE_MACHINE: Mapping[str, str] = {
    "machine_rank": "matters with several machines",
    "same_network": "matters with several machines",
    "main_process_ip": "matters with several machines",
    "rdzv_backend": "accelerate config writes it into every file",
    "enable_cpu_affinity": "accelerate config writes it into every file",
    "use_cpu": "what it changes depends on the machine",
    "compute_environment": "the same as its default",
    "debug": "the same as its default",
    "dynamo_backend": "NO is what happens without it",
    "num_machines": "the same as its default",
    "mpirun_config": "matters with MPI",
}
"""Keys of accelerate that do nothing in most files, and why that is no fault."""
CONDITIONAL: Mapping[str, str] = {
    **dict.fromkeys(
        ("deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_exclusion_filter"),
        "matters with several machines",
    ),
    "deepspeed_inclusion_filter": "matters with several machines",
    "zero3_init_flag": "false is what happens without it",
    "deepspeed_moe_layer_cls_names": "read when the model is prepared",
    "fsdp_transformer_layer_cls_to_wrap": "matters with TRANSFORMER_BASED_WRAP",
    "fsdp_min_num_params": "matters with SIZE_BASED_WRAP",
    "fsdp_sync_module_states": "matters at version 1, and is checked at 2",
}
"""Keys of accelerate's blocks that matter in other files, and why that is no fault."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """What a consumer said of the keys of a file.

    Attributes:
        done: Whether it was asked and answered.
        note: One line: whom, or why not.
        tried: How many files it read.
        versions: Of the packages that were asked.
    """

    done: bool
    note: str
    tried: int = 0
    versions: Mapping[str, str] | None = None


def question_of(
    kind: Kind, config: Mapping[str, Any], findings: Sequence[Finding], folder: Path
) -> Question | str:
    """What to ask about a file; or why nobody can be asked.

    Args:
        kind: Whose file it is.
        config: The parsed file.
        findings: Those of the tables and checks.
        folder: Where its consumer would be started.
    """
    named = get(config, ("deepspeed_config", NAMED))
    if kind == "accelerate" and named is not None and not (folder / str(named)).is_file():
        return f"{named} is not here"
    if kind == "accelerate" and config.get("compute_environment") == "AMAZON_SAGEMAKER":
        return "it is started on SageMaker"
    breaking = [item for item in findings if item.rule.id in BREAKING and not item.inert]
    drop = [*(item.key for item in breaking if item.key), *HARDWARE]
    keys = [key for key in leaves(kind, config) if not any(_within(key, gone) for gone in drop)]
    if not keys:
        return "no key of it is parsed by itself"
    options = {"config": config, "keys": [*map(list, keys)], "drop": [*map(list, drop)]}
    return Question(f"perturb-{kind}", folder.resolve(), options)


def leaves(kind: Kind, config: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Keys to change: those that hold no mapping with keys of its own."""
    for part in PARTS[kind]:
        inner = config.get(part)
        if isinstance(inner, Mapping):
            yield from _leaves(inner, (part,))
    if not PARTS[kind]:
        yield from _leaves(config, ())


def _leaves(config: Mapping[str, Any], path: KeyPath) -> Iterator[KeyPath]:
    for key, value in config.items():
        if key.startswith(COMMENTS):
            continue
        if not isinstance(value, Mapping):
            yield (*path, key)
        else:
            yield from _leaves(value, (*path, key))


def settled(
    kind: Kind, config: Mapping[str, Any], findings: Sequence[Finding], answer: Answer
) -> tuple[list[Finding], Liveness]:
    """The findings, confirmed, dropped or added to by what the consumer said."""
    who = " and ".join(f"{name} {number}" for name, number in answer.versions.items())
    if answer.missing:
        missing = " and ".join(answer.missing)
        return list(findings), Liveness(False, f"{missing} is not installed")
    if answer.refused is not None:
        return list(findings), Liveness(False, f"the reader failed: {_line(answer.refused)}")
    told = answer.effective
    live = Liveness(True, who, told["tried"], answer.versions)
    if told["refused"] is not None:
        text = f"{who} refuses it: {_line(told['refused'])}"
        item = replace(found("consumer-refuses", (), text), confirmed=True)
        return [*findings, item], replace(live, done=False)
    dead = {tuple(key) for key in told["inert"]}
    asked = set(leaves(kind, config))
    kept = [item for item in map(lambda item: _judged(item, dead, asked), findings) if item]
    return [*kept, *_more(kind, config, kept, dead, who)], live


def _judged(item: Finding, dead: set[KeyPath], asked: set[KeyPath]) -> Finding | None:
    """A finding of a dead key, unless the consumer does something with the key."""
    if not item.inert:
        return item
    inner = {key for key in asked if _within(key, item.key)}
    if not inner:
        return item
    return replace(item, confirmed=True) if inner <= dead else None


def _more(
    kind: Kind,
    config: Mapping[str, Any],
    findings: Sequence[Finding],
    dead: set[KeyPath],
    who: str,
) -> Iterator[Finding]:
    """Dead keys that no table knows of."""
    known = [item.key for item in findings if item.inert or item.rule.id in BREAKING]
    known += [edit.path for item in findings for edit in item.edits if edit.kind == "remove"]
    for key in sorted(dead, key=str):
        if any(_within(key, other) for other in known if other) or excused(kind, config, key):
            continue
        text = f"{dotted(key)} does nothing: {who} makes the same of the file, whatever it says"
        yield replace(found("inert-key", key, text, remove(*key), inert=True), confirmed=True)


def excused(kind: Kind, config: Mapping[str, Any], key: KeyPath) -> str | None:
    """Why a key that does nothing is no fault; None where it is one."""
    name = str(key[-1])
    if kind == "accelerate" and len(key) == 1:
        usual = TPU.get(name)
        if usual is not None and config[name] in usual:
            return "accelerate config writes it into every file"
        return ONE_MACHINE.get(name)
    if kind == "accelerate":
        full = name if key[0] != "fsdp_config" or name.startswith("fsdp") else f"fsdp_{name}"
        return CONDITIONAL.get(full)
    if kind in ("deepspeed", "huggingface") and key[0] != "fsdp_config":
        top = str(key[1] if kind == "huggingface" else key[0])
        return ELSEWHERE.get(top)
    return None


def _within(key: KeyPath, outer: KeyPath) -> bool:
    return key[: len(outer)] == outer


def _line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    short = " ".join(lines[:3])
    return short if len(short) <= 300 else short[:300] + "..."
