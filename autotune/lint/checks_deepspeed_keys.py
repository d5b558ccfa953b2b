"""Keys of a DeepSpeed configuration: instruments, other stages, old names, engine errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.configs.deepspeed_blocks import zero_block, zero_stage
from autotune.configs.deepspeed_faults import SPELLINGS
from autotune.configs.deepspeed_keys import BATCH, REPLACED, STAGE3, VALIDATED
from autotune.configs.deepspeed_says import precision
from autotune.configs.texts import block
from autotune.configs.values import AUTO, as_bool, as_float
from autotune.lint.checks_deepspeed import truth
from autotune.lint.edits import Edit, insert, put, remove, rename
from autotune.lint.finding import About, Check, Finding, found

Config = Mapping[str, Any]
ZERO = "zero_optimization"
SWITCHES: tuple[tuple[str, ...], ...] = (
    ("wall_clock_breakdown",),
    ("flops_profiler", "enabled"),
)
STAGES: Mapping[str, tuple[int, ...]] = {
    "allgather_partitions": (),
    **dict.fromkeys(
        ("contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "overlap_comm"), (1, 2, 3)
    ),
    **dict.fromkeys(
        (
            *("allgather_bucket_size", "use_multi_rank_bucket_allreduce"),
            *("round_robin_gradients", "ignore_unused_parameters"),
        ),
        (1, 2),
    ),
    **dict.fromkeys(("sub_group_size", "zero_hpz_partition_size", "zero_quantized_weights"), (3,)),
    **dict.fromkeys(STAGE3, (3,)),
    **{f"stage3_{name}": (3,) for name in STAGE3},
    "stage3_gather_fp16_weights_on_model_save": (3,),
}
"""At which stages DeepSpeed 0.19.8 uses a key of ``zero_optimization``."""


def other_stage(config: Config, about: About) -> Iterator[Finding]:
    """Keys that this stage does not read."""
    zero, stage = block(config, ZERO), zero_stage(config)
    dead = [key for key in zero if stage is not None and stage not in STAGES.get(key, (stage,))]
    if stage is None:
        dead = [key for key in zero if STAGES.get(key) == ()]
    if dead:
        verb = "do" if len(dead) > 1 else "does"
        text = f"{', '.join(dead)} {verb} nothing at stage {'auto' if stage is None else stage}"
        edits = [remove(ZERO, key) for key in dead]
        yield found("ds-other-stage", (ZERO, dead[0]), text, *edits)


def comms_logger(config: Config, about: About) -> Iterator[Finding]:
    """On by its mere key."""
    if "comms_logger" in config:
        off = as_bool(block(config, "comms_logger").get("enabled", False)) is False
        says = ", though it says that it is off" if off else ""
        text = f"comms_logger is on by its mere key{says}: it synchronises every collective"
        yield found("ds-comms-logger", ("comms_logger",), text, remove("comms_logger"))


def timers(config: Config, about: About) -> Iterator[Finding]:
    """Instruments that wait for the device."""
    for switch in SWITCHES:
        if truth(config, *switch):
            text = f"{'.'.join(switch)} is true: it waits for the device in every micro-batch"
            yield found("ds-timers", switch, text, put(switch, False))
    values = block(config, "timers", "throughput")
    if values and all(as_bool(values.get(key, True)) for key in ("enabled", "synchronized")):
        key = ("timers", "throughput", "synchronized")
        edit = put(key, False) if "synchronized" in values else insert(key, False)
        text = "timers.throughput is on: it waits for the device around every micro-batch"
        yield found("ds-timers", key[:2], text, edit)


def old_names(config: Config, about: About) -> Iterator[Finding]:
    """Names that DeepSpeed still understands."""
    if "bfloat16" in config and "bf16" not in config:
        text = "bfloat16 is the old name of bf16"
        yield found("old-name", ("bfloat16",), text, rename(("bfloat16",), "bf16"))
    whole = config.get(ZERO)
    if isinstance(whole, bool):
        stage = 1 if whole else 0
        text = f"{ZERO} is a single boolean, which means stage {stage}"
        yield found("old-name", (ZERO,), text, put((ZERO,), {"stage": stage}))
    for old, new in REPLACED.items():
        if old in block(config, ZERO):
            text = f"{ZERO}.{old} is the old name of {new}"
            yield found("old-name", (ZERO, old), text, *_renamed(config, old, new))


def _renamed(config: Config, old: str, new: str) -> tuple[Edit, ...]:
    zero, key = block(config, ZERO), (ZERO, old)
    if new in zero or (old.startswith("cpu_") and as_bool(zero[old]) is False):
        return (remove(*key),)
    if old.startswith("cpu_"):
        return (remove(*key), insert((ZERO, new), {"device": "cpu"}))
    return (rename(key, new),)


def autos(config: Config, about: About) -> Iterator[Finding]:
    """Values that transformers and accelerate fill in."""
    keys: list[tuple[str, ...]] = [
        (name,) for name in (*BATCH, "gradient_clipping") if config.get(name) == AUTO
    ]
    for name in VALIDATED:
        keys += [(name, key) for key, value in block(config, name).items() if value == AUTO]
    if keys:
        text = (
            f'{len(keys)} values are "auto", which transformers and accelerate fill in, but not '
            "DeepSpeed alone"
        )
        yield found("ds-auto", keys[0], text)


def strict(config: Config, about: About) -> Iterator[Finding]:
    """Whether other readers than DeepSpeed can read it."""
    if not about.strict:
        text = "comments, trailing commas or bare words: DeepSpeed reads them, others do not"
        if about.auto:
            text += ', and "auto" is for others'
        yield found("ds-not-strict", (), text, level="warning" if about.auto else None)


def engine_errors(config: Config, about: About) -> Iterator[Finding]:
    """What the parser takes and the engine refuses."""
    stage, zero = zero_stage(config), zero_block(config)
    if stage in (2, 3) and as_bool(zero.get("reduce_scatter", True)) is not False:
        for key in _divided(config):
            text = f"{key} with reduce_scatter, which stage {stage} refuses"
            yield found("refused-combination", (key,), text)
    named = block(config, "data_types").get("grad_accum_dtype")
    computed = precision(config, auto=about.auto)
    same = computed is None or str(named).removeprefix("torch.") in SPELLINGS[computed]
    if stage == 0 and named is not None and not same:
        text = f"data_types.grad_accum_dtype is {named} under {computed} at stage 0"
        yield found("refused-combination", ("data_types", "grad_accum_dtype"), text)
    if "max_grad_norm" in block(config, "optimizer", "params"):
        text = "optimizer.params.max_grad_norm, which the engine refuses; use gradient_clipping"
        yield found("refused-combination", ("optimizer", "params", "max_grad_norm"), text)


def _divided(config: Config) -> list[str]:
    factor = as_float(config.get("gradient_predivide_factor", 1.0))
    keys = ["prescale_gradients"] if truth(config, "prescale_gradients") else []
    return keys + (["gradient_predivide_factor"] if factor not in (None, 1.0) else [])


CHECKS: tuple[Check, ...] = (
    other_stage,
    comms_logger,
    timers,
    old_names,
    autos,
    strict,
    engine_errors,
)
