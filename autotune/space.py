"""The setups a sweep may try: knobs, the conditions they hang on, restrictions with reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.errors import UsageError
from autotune.scales import SCALE_FIELDS, first_scale, fitted
from autotune.setup import LossScale, Scaler, Setup, scaler_of
from autotune.workload import Workload

Knobs = Mapping[str, Any]
SCALE = "loss_scale."  # of a knob's name, before the field
LARGEST_SPACE = 100_000


@dataclass(frozen=True, slots=True)
class Context:
    """What conditions and restrictions may ask about.

    Attributes:
        workload: What the user trains today; its global batch is kept.
        world_size: Ranks of a launch.
        device: ``cuda`` or ``cpu``.
        bf16: ``native``, ``emulated`` or ``none``, as the machine answered.
        fp16: As ``bf16``.
        tf32: Whether the tensor cores take TF32.
    """

    workload: Workload
    world_size: int
    device: str
    bf16: str
    fp16: str
    tf32: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """A knob exists only where ``holds``; elsewhere it has the one value ``otherwise``."""

    knob: str
    name: str
    reason: str
    holds: Callable[[Knobs, Context], bool]
    otherwise: Any = None


@dataclass(frozen=True, slots=True)
class Restriction:
    """Setups that are ``refused`` are not tried, for a reason that `plan` prints."""

    name: str
    reason: str
    refuses: Callable[[Setup, Context], bool]


@dataclass(frozen=True, slots=True)
class Removed:
    """How many combinations of values a restriction removed, and the setups they led to."""

    restriction: str
    count: int
    reason: str
    keys: tuple[str, ...]


DEFAULT_AXES: Mapping[str, tuple[Any, ...]] = {
    "backend": ("deepspeed", "fsdp"),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "grad_comm_dtype": ("fp32", "bf16", "fp16"),
    "zero_stage": (1, 2, 3),
    "bucket_bytes": (25_000_000, 100_000_000, 400_000_000),
    "overlap_comm": (True, False),
    "activation_checkpointing": (False,),
}
"""What an absent knob takes. ``micro_batch`` takes the workload's; loss scales: see scales.py."""

CONDITIONS = (
    Condition(
        "grad_comm_dtype",
        "wire-needs-two-ranks",
        "with one rank no gradient crosses a wire",
        lambda knobs, context: context.world_size > 1,
        "fp32",
    ),
    Condition(
        "zero_stage",
        "stages-need-sharding",
        "DDP keeps weights, gradients and optimizer state whole on every rank",
        lambda knobs, context: knobs["backend"] != "ddp",
        0,
    ),
    Condition(
        "bucket_bytes",
        "buckets-need-a-size",
        "FSDP2 reduces a layer at a time, and ZeRO stage 0 in a bucket of fixed size",
        lambda knobs, context: (
            knobs["backend"] == "ddp"
            or (knobs["backend"] == "deepspeed" and knobs["zero_stage"] > 0)
        ),
    ),
    Condition(
        "overlap_comm",
        "overlap-needs-streams",
        "FSDP2, DDP and ZeRO stage 0 have no such switch, and a CPU has no streams to overlap",
        lambda knobs, context: (
            knobs["backend"] == "deepspeed" and knobs["zero_stage"] > 0 and context.device == "cuda"
        ),
    ),
)

RESTRICTIONS = (
    Restriction(
        "tf32-needs-ampere",
        "TF32 matmuls exist on CUDA devices of compute capability 8.0 and later",
        lambda setup, context: setup.precision == "tf32" and not context.tf32,
    ),
    Restriction(
        "bf16-is-emulated",
        "this GPU has no bf16 units; torch converts to fp32 and back",
        lambda setup, context: (
            setup.precision == "bf16"
            and (context.bf16 == "none" or (context.device == "cuda" and context.bf16 != "native"))
        ),
    ),
    Restriction(
        "fp16-not-supported",
        "this device has no fp16 kernels",
        lambda setup, context: setup.precision == "fp16" and context.fp16 == "none",
    ),
    Restriction(
        "fp16-wire-needs-loss-scale",
        "gradients that were not scaled vanish below 6e-8 in fp16; only fp16 scales them",
        lambda setup, context: setup.grad_comm_dtype == "fp16" and setup.precision != "fp16",
    ),
    Restriction(
        "global-batch-is-kept",
        "micro_batch must divide the samples that a rank contributes to a step today",
        lambda setup, context: (
            setup.micro_batch * setup.gradient_accumulation != context.workload.samples_per_rank
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Open:
    """A knob that still has to be chosen."""

    knob: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """A knob with several values of which nothing is tried, and why."""

    knob: str
    reason: str


ScalePlace = tuple[Scaler, int]  # a policy is chosen for each scaler and micro-batch


@dataclass(frozen=True, slots=True)
class Space:
    """Knobs and their values, ready to be walked.

    Attributes:
        axes: Values of each knob, in the order in which they are chosen.
        scales: Values of each field of the loss scale that the file lists. They are no axes: a
            loss scale is chosen by replay.
        context: What conditions and restrictions ask about.
        restrictions: General ones, those of the backends, and those that were measured.
        policies: The loss scales chosen so far.
    """

    axes: Mapping[str, tuple[Any, ...]]
    scales: Mapping[str, tuple[Any, ...]]
    context: Context
    restrictions: tuple[Restriction, ...]
    policies: Mapping[ScalePlace, LossScale] = field(default_factory=dict)

    def resolve(self, chosen: Knobs) -> Open | Setup:
        """The next knob that exists and has a choice, or the setup once there is none."""
        knobs: dict[str, Any] = {}
        for name, values in self.axes.items():
            failed = next(
                (item for item in _conditions(name) if not item.holds(knobs, self.context)), None
            )
            if failed is not None:
                knobs[name] = failed.otherwise
            elif len(values) == 1:
                knobs[name] = values[0]
            elif name in chosen:
                knobs[name] = chosen[name]
            else:
                return Open(name, values)
        return self._setup(knobs)

    def walk(self, choose: Callable[[str, tuple[Any, ...]], Any]) -> Setup:
        """Builds one setup, asking ``choose`` for each knob that is open."""
        chosen: dict[str, Any] = {}
        while isinstance(step := self.resolve(chosen), Open):
            chosen[step.knob] = choose(step.knob, step.values)
        return step

    def _setup(self, knobs: dict[str, Any]) -> Setup:
        samples = self.context.workload.samples_per_rank
        return Setup(
            **knobs,
            gradient_accumulation=max(1, samples // knobs["micro_batch"]),
            loss_scale=self._scale(knobs) if knobs["precision"] == "fp16" else None,
        )

    def _scale(self, knobs: Knobs) -> LossScale:
        scaler = scaler_of(knobs["backend"], knobs["zero_stage"])
        chosen = self.policies.get((scaler, knobs["micro_batch"]))
        return first_scale(self.scales, scaler) if chosen is None else chosen

    def closed(self) -> tuple[Closed, ...]:
        """Knobs with a choice that no setup has."""
        open_knobs = {knob for chosen, _ in self.choices() for knob in chosen}
        return tuple(
            Closed(knob, _conditions(knob)[-1].reason)
            for knob, values in self.axes.items()
            if len(values) > 1 and knob not in open_knobs
        )

    def refusal(self, setup: Setup) -> Restriction | None:
        """The first restriction that refuses the setup."""
        return next((item for item in self.restrictions if item.refuses(setup, self.context)), None)

    def choices(self) -> Iterator[tuple[dict[str, Any], Setup]]:
        """Every walk: the values chosen, and the setup they lead to, refused ones included."""
        pending: list[dict[str, Any]] = [{}]
        while pending:
            chosen = pending.pop()
            step = self.resolve(chosen)
            if isinstance(step, Open):
                pending += [{**chosen, step.knob: value} for value in reversed(step.values)]
            else:
                yield chosen, step

    def valid(self) -> dict[Setup, dict[str, Any]]:
        """Setups that may be tried, each with the choices that lead to it.

        Raises:
            UsageError: Nothing is left, or the space is too large to enumerate.
        """
        found: dict[Setup, dict[str, Any]] = {}
        for count, (chosen, setup) in enumerate(self.choices()):
            if count == LARGEST_SPACE:
                raise UsageError(
                    f"The space has over {LARGEST_SPACE} combinations; list fewer values."
                )
            if self.refusal(setup) is None:
                found[setup] = chosen
        if not found:
            raise UsageError(self._emptied())
        return found

    def removed(self) -> tuple[Removed, ...]:
        """What each restriction removed, the largest share first."""
        refused: dict[Restriction, list[str]] = {}
        for _, setup in self.choices():
            refusal = self.refusal(setup)
            if refusal is not None:
                refused.setdefault(refusal, []).append(setup.key)
        found = [
            Removed(item.name, len(keys), item.reason, tuple(sorted(set(keys))))
            for item, keys in refused.items()
        ]
        return tuple(sorted(found, key=lambda item: item.count, reverse=True))

    def _emptied(self) -> str:
        lines = [f"  {item.restriction}: {item.count} ({item.reason})" for item in self.removed()]
        return "\n".join(
            ["No setup is left in the space. Removed were:", *lines, "Allow other values."]
        )


def _conditions(knob: str) -> Sequence[Condition]:
    return [condition for condition in CONDITIONS if condition.knob == knob]


def make_space(
    axes: Mapping[str, tuple[Any, ...]], context: Context, restrictions: Sequence[Restriction]
) -> Space:
    """A space of the listed axes; absent knobs take their default list.

    Args:
        axes: Values by knob, as the sweep file lists them.
        context: What conditions and restrictions ask about.
        restrictions: Those of the backends; the general ones are added.
    """
    defaults = {**DEFAULT_AXES, "micro_batch": (context.workload.micro_batch,)}
    merged = {name: tuple(axes.get(name, values)) for name, values in defaults.items()}
    return Space(merged, _scale_fields(axes), context, (*RESTRICTIONS, *restrictions))


def _scale_fields(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """What is named of the loss scale, by field."""
    named = {name: f"{SCALE}{name}" for name in SCALE_FIELDS}
    return {name: knobs[knob] for name, knob in named.items() if knob in knobs}


BASELINE_DEFAULTS: Knobs = {
    "backend": "deepspeed",
    "precision": "fp32",
    "zero_stage": 1,
    "bucket_bytes": 100_000_000,
    "overlap_comm": True,
    "activation_checkpointing": False,
}


def make_baseline(named: Knobs, space: Space) -> Setup:
    """The setup that the user has today, out of the knobs they name.

    A knob not named takes the value that the space fixes, else fp32 training with ZeRO stage
    1; the gradient-communication dtype follows the precision, as DeepSpeed does it.

    Raises:
        UsageError: A restriction refuses it.
    """
    baseline, refusal = complete(named, space)
    if refusal is not None:
        raise UsageError(
            f"The baseline {baseline.key} cannot be trained: {refusal.name} ({refusal.reason}). "
            "Name another baseline in the sweep file."
        )
    return baseline


def complete(named: Knobs, space: Space) -> tuple[Setup, Restriction | None]:
    """The setup of the knobs that are named, as in `make_baseline`, and what refuses it."""
    fixed = {name: values[0] for name, values in space.axes.items() if len(values) == 1}
    first = {name: values[0] for name, values in DEFAULT_AXES.items()}
    knobs = {
        **first,
        "micro_batch": space.context.workload.micro_batch,
        **BASELINE_DEFAULTS,
        **fixed,
        **named,
    }
    if named.get("backend", fixed.get("backend")) == "fsdp" and "zero_stage" not in named:
        knobs["zero_stage"] = fixed.get("zero_stage", 3)
    if "grad_comm_dtype" not in named and "grad_comm_dtype" not in fixed:
        precision = knobs["precision"]
        knobs["grad_comm_dtype"] = precision if precision in ("bf16", "fp16") else "fp32"
    axes = {name: (knobs[name],) for name in space.axes}
    single = replace(space, axes=axes, scales=_baseline_scale(named, space), policies={})
    (_, setup), *_ = single.choices()
    if setup.loss_scale is not None:
        scaler = scaler_of(setup.backend, setup.zero_stage)
        setup = replace(setup, loss_scale=fitted(setup.loss_scale, scaler))
    return setup, single.refusal(setup)


def _baseline_scale(named: Knobs, space: Space) -> dict[str, tuple[Any, ...]]:
    """Fields of the loss scale that the user names or the space fixes; others are usual."""
    fixed = {name: values for name, values in space.scales.items() if len(values) == 1}
    return {**fixed, **{name: (value,) for name, value in _scale_fields(named).items()}}
