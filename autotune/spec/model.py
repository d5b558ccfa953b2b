"""The sweep file as pydantic models: the boundary between YAML and a sweep."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core.core_schema import ValidationInfo

from autotune.setup import Backend, Precision, WireDtype
from autotune.spec.hf import check_key
from autotune.spec.kinds import (
    Axis,
    Bits,
    Bytes,
    ClassName,
    Count,
    DataFile,
    Deadline,
    Distance,
    Error,
    FactoryPath,
    Folder,
    Fraction,
    GateSteps,
    IntegerName,
    LearningRate,
    Line,
    Margin,
    Minutes,
    Name,
    Power,
    Ranks,
    Ratio,
    Seed,
    Stage,
    Steps,
    TraceSteps,
    Version,
    Vocabulary,
    wrong,
)
from autotune.workload import HfTask

MODELS = ("gpt", "hf", "python", "script")
OFFERED_ARGS = ("micro_batch", "rank", "world_size", "seed", "folder")


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Gpt(_Section):
    """A decoder-only transformer on random tokens."""

    layers: Count
    """Transformer blocks."""
    style: Literal["llama", "gpt2"] = "llama"
    """llama: RMSNorm, rotary positions, SwiGLU. gpt2: LayerNorm, learned positions, GELU."""
    width: Count
    """Model dimension; a multiple of heads."""
    heads: Count
    """Query heads."""
    kv_heads: Count | None = None
    """Key and value heads; divides heads. Default: as many as heads."""
    vocab: Vocabulary
    """Vocabulary entries."""
    sequence: Count
    """Tokens in a sample."""
    mlp_ratio: Ratio | None = None
    """Hidden size of the MLP over width. Default: 4 for gpt2, 8/3 for llama."""

    @field_validator("heads")
    @classmethod
    def _heads_fit(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("width")
        if width is None:
            return heads
        if width % heads:
            raise wrong(f"{heads} does not divide width ({width}); allowed: a divisor of width")
        if info.data.get("style") == "llama" and (width // heads) % 2:
            raise wrong(
                f"{heads} heads over width {width} have the odd size {width // heads}; "
                "allowed: an even width / heads, because rotary positions turn pairs"
            )
        return heads

    @field_validator("kv_heads")
    @classmethod
    def _kv_heads_fit(cls, kv_heads: int | None, info: ValidationInfo) -> int | None:
        heads = info.data.get("heads")
        if kv_heads is not None and heads is not None and heads % kv_heads:
            raise wrong(f"{kv_heads} does not divide heads ({heads}); allowed: a divisor of heads")
        return kv_heads

    @property
    def ratio(self) -> float:
        """``mlp_ratio`` or the style's own."""
        if self.mlp_ratio is not None:
            return self.mlp_ratio
        return 4.0 if self.style == "gpt2" else 8 / 3


class ScriptSection(_Section):
    """Your own training script, run unchanged once a probe."""

    command: Line | None = None
    """Script and arguments, with placeholders such as {deepspeed_config}. Default: what stands
    after -- on the command line."""
    launcher: Literal["torchrun", "accelerate"] = "torchrun"
    """What starts it."""


class WorkloadSection(_Section):
    """What the probes train. Give exactly one of gpt, hf, python and script."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [name]} for name in MODELS]}
    )

    gpt: Gpt | None = None
    """The built-in model."""
    hf: Folder | None = None
    """A model of transformers: the folder with its config.json, and perhaps weights, or that file;
    from the folder of this file. Nothing is downloaded."""
    python: FactoryPath | None = None
    """Your own: package.module:factory, found from the folder of this file."""
    script: ScriptSection | None = None
    """Your own training script, unchanged."""
    args: dict[str, Any] | None = None
    """Keyword arguments for the python factory."""
    task: HfTask | None = None
    """Of hf: what the model is trained for. Default: what its configuration says."""
    sequence: Count | None = None
    """Of hf: tokens in a sample. Default: 512, or what the model or a row of the data has room
    for."""
    data: DataFile | None = None
    """Of hf: tokenised file, from the folder of this file. Default: random batches."""
    data_dtype: IntegerName | None = None
    """Integers of a .bin file. Default: uint16."""
    data_column: Annotated[str, Field(min_length=1)] | None = None
    """Column of a .parquet file. Default: input_ids."""
    layers: Axis[ClassName] | None = None
    """Of hf: names of the layer classes to shard and to checkpoint. Default: the model's own."""
    micro_batch: Count
    """Samples a rank and a backward call, as you train today."""
    gradient_accumulation: Count
    """Backward calls a step, as you train today."""
    seed: Seed = 0
    """Seed of weights and batches."""

    @field_validator("args")
    @classmethod
    def _args_are_free(
        cls, args: dict[str, Any] | None, info: ValidationInfo
    ) -> dict[str, Any] | None:
        other = next((name for name in MODELS if info.data.get(name) is not None), "python")
        if other != "python":
            raise wrong(
                f"args go to a python factory; delete them or use python instead of {other}"
            )
        taken = [name for name in OFFERED_ARGS if args and name in args]
        if taken:
            raise wrong(f"{', '.join(taken)} cannot be given here: each probe sets it itself")
        return args

    @field_validator("task", "sequence", "data", "data_dtype", "data_column", "layers")
    @classmethod
    def _goes_with_hf(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        check_key(info.field_name, info.data, MODELS)
        return value


class Local(_Section):
    """Worker processes on this machine."""

    ranks: Ranks = None
    """Processes. auto: one for each GPU; without a GPU, two on the CPU."""
    deadline_seconds: Deadline = 300.0
    """Longest that one probe may take before it counts as hung."""
    probes_per_launch: Count = 50
    """Probes after which the workers are replaced."""


class Launch(_Section):
    """Where the probes run."""

    local: Local = Local()


class LossScaleAxes(_Section):
    """Dynamic loss scaling of fp16. Lists are searched by replaying a trace, not by probes."""

    initial_power: Axis[Power] | None = None
    """The first scale is 2 to this power."""
    window: Axis[Count] | None = None
    """Steps without overflow after which the scale doubles."""
    hysteresis: Axis[Count] | None = None
    """Overflows tolerated before the scale halves (DeepSpeed)."""
    minimum: Axis[Count] | None = None
    """Floor of the scale (DeepSpeed)."""


class SpaceSection(_Section):
    """What may be tried. A list is searched, a single value is fixed, absent: a default list."""

    backend: Axis[Backend] | None = None
    """The library that shards and reduces."""
    precision: Axis[Precision] | None = None
    """Compute dtype of forward and backward; master weights stay fp32."""
    grad_comm_dtype: Axis[WireDtype] | None = None
    """Dtype of the gradients on the wire."""
    zero_stage: Axis[Stage] | None = None
    """DeepSpeed's ZeRO stage; FSDP has 2 (no reshard after forward) and 3 (reshard)."""
    bucket_bytes: Axis[Bytes] | None = None
    """Bytes of a gradient bucket on the wire (DeepSpeed, DDP)."""
    overlap_comm: Axis[bool] | None = None
    """Reduce while the backward pass runs (DeepSpeed)."""
    activation_checkpointing: Axis[bool] | None = None
    """Recompute each layer's forward in the backward: slower, with less memory."""
    micro_batch: Axis[Count] | None = None
    """Samples a backward call; gradient accumulation follows, the global batch stays."""
    loss_scale: LossScaleAxes | None = None


class LossScaleValues(_Section):
    """Dynamic loss scaling of fp16."""

    initial_power: Power | None = None
    """The first scale is 2 to this power."""
    window: Count | None = None
    """Steps without overflow after which the scale doubles."""
    hysteresis: Count | None = None
    """Overflows tolerated before the scale halves (DeepSpeed)."""
    minimum: Count | None = None
    """Floor of the scale (DeepSpeed)."""


class KnobsSection(_Section):
    """One value for each knob that is named."""

    backend: Backend | None = None
    """The library that shards and reduces."""
    precision: Precision | None = None
    """Compute dtype of forward and backward."""
    grad_comm_dtype: WireDtype | None = None
    """Dtype of the gradients on the wire. Default: follows precision."""
    zero_stage: Stage | None = None
    """DeepSpeed's ZeRO stage; FSDP has 2 and 3."""
    bucket_bytes: Bytes | None = None
    """Bytes of a gradient bucket on the wire (DeepSpeed, DDP)."""
    overlap_comm: bool | None = None
    """Reduce while the backward pass runs (DeepSpeed)."""
    activation_checkpointing: bool | None = None
    """Recompute each layer's forward in the backward."""
    micro_batch: Count | None = None
    """Samples a backward call. Default: the workload's."""
    loss_scale: LossScaleValues | None = None


class BaselineSection(KnobsSection):
    """How you train today: one value for each knob you name, or your own configuration file."""

    deepspeed_config: Folder | None = None
    """Your DeepSpeed configuration, from the folder of this file. What has no knob in it is carried
    through to every setup and to the export. Knobs beside it say what it leaves open."""
    accelerate_config: Folder | None = None
    """Your accelerate configuration, likewise."""


class TargetSection(_Section):
    """The real run, for what a probe is too short or too small to show."""

    world_size: Count | None = None
    """Ranks of the real run."""
    steps: Count | None = None
    """Optimizer steps of the real run."""
    learning_rate: LearningRate | None = None
    """Of the real run; the gates' short training runs take it."""


class GatesSection(_Section):
    """Limits of your own for the gates. A setup beyond one is refused."""

    activation_headroom: Bits | None = None
    """Bits that the largest activation stays below the largest of fp16, at least. Default: 2."""
    underflow: Distance | None = None
    """Norm of the gradients that became zero, over the whole norm, at most. Default: 0.001."""
    gain: Distance | None = None
    """Distance of the gradient's length from fp32's, over the latter, at most. Default: 0.01."""
    relative_error: Error | None = None
    """Error of the gradient over its norm, at most; a warning over a fifth of it. Default: the
    coarsest dtype's: fp32 0.0005, tf32 0.005, fp16 0.015, bf16 0.1."""
    cosine: Distance | None = None
    """1 minus the cosine between the gradient and fp32's, at most. Default: 0.001."""
    worst_tensor: Error | None = None
    """Relative error of the gradient of any one tensor, at most. Default: 0.1."""
    weights_move: Fraction | None = None
    """Fraction of the weights that an optimizer step changes, at least. Default: 0.5."""
    gradient_norm: Distance | None = None
    """Of scripts: distance of the gradient's norm from the reference's, over the latter, at most.
    Default: 0.05, or 3 sigma of the reference's own runs where that is more."""
    loss_band: Distance | None = None
    """Distance of the loss from fp32's after gate_steps, over the latter, at most. Default: 0.005,
    or 3 sigma of fp32 runs where that is more."""
    wire_error: Distance | None = None
    """Predicted error of the summed gradient at target.world_size, at most; a warning over a
    fifth of it. Default: 0.05."""


class BudgetSection(_Section):
    """When to stop: minutes, probes, or whichever comes first."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["minutes"]}, {"required": ["probes"]}]}
    )

    minutes: Minutes | None = None
    """Wall time."""
    probes: Count | None = None
    """Measurements."""

    @model_validator(mode="after")
    def _has_an_end(self) -> BudgetSection:
        if self.minutes is None and self.probes is None:
            raise wrong("no limit is given; allowed: minutes, probes or both")
        return self


class MeasureSection(_Section):
    """How long a probe or a reading of numerics measures, in optimizer steps."""

    warm_up_steps: Steps = 4
    """Before the first check for steadiness."""
    warm_up_cap: Annotated[Steps, Field(validate_default=True)] = 12
    """Measure after this many, steady or not."""
    timed_steps: Steps = 10
    """With per-phase times."""
    end_to_end_steps: Steps = 5
    """Without per-phase synchronisation."""
    gate_steps: GateSteps = 50
    """Of the short training run that the gates judge."""
    trace_steps: TraceSteps = 60
    """In fp16, from which the search for the loss scale is replayed."""

    @field_validator("warm_up_cap")
    @classmethod
    def _cap_is_above(cls, cap: int, info: ValidationInfo) -> int:
        steps = info.data.get("warm_up_steps")
        if steps is not None and cap < steps:
            raise wrong(f"{cap} is below warm_up_steps ({steps}); allowed: at least {steps}")
        return cap


class SweepFile(_Section):
    """A sweep: what is trained, what may be tried, and for how long."""

    version: Version
    """Of this format."""
    name: Name
    """Results go to runs/<name>."""
    workload: WorkloadSection
    launch: Launch = Launch()
    space: SpaceSection = SpaceSection()
    baseline: BaselineSection = BaselineSection()
    target: TargetSection | None = None
    gates: GatesSection = GatesSection()
    budget: BudgetSection = BudgetSection(minutes=10.0)
    margin: Margin = 0.01
    """Gains below it are not worth a change: 1% or 0.01."""
    templates: Folder | None = None
    """Folder with templates of your own, from the folder of this file; same names override."""
    measure: MeasureSection = MeasureSection()
