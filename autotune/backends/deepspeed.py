"""DeepSpeed's JSON configuration."""

from __future__ import annotations

from autotune.backends.dialect import GRADIENT_CLIPPING, Dialect
from autotune.setup import DTYPE_BYTES, Setup, WireDtype
from autotune.space import Restriction


def variables(setup: Setup) -> dict[str, object]:
    """Variables of the DeepSpeed template.

    Beside the knobs: ``gradient_clipping``, ``grad_accum_dtype``, ``reduce_bucket_size`` in
    elements of the wire dtype (None where there are no buckets), and ``overlap_comm``, which
    is False where the setup has no such knob.
    """
    return {
        **setup.to_dict(),
        "gradient_clipping": GRADIENT_CLIPPING,
        "grad_accum_dtype": _grad_accum_dtype(setup),
        "reduce_bucket_size": _reduce_bucket_size(setup),
        "overlap_comm": bool(setup.overlap_comm),
    }


def _grad_accum_dtype(setup: Setup) -> WireDtype:
    # Stage 0 takes the model's dtype only, and fp32 under bf16 at stage 1 would silently
    # train with another optimizer class, which is not the one that other stages measure.
    if setup.zero_stage >= 2 or setup.precision == "tf32":
        return "fp32"
    return setup.precision


def _reduce_bucket_size(setup: Setup) -> int | None:
    if setup.bucket_bytes is None:
        return None
    return setup.bucket_bytes // DTYPE_BYTES[setup.grad_comm_dtype]


RESTRICTIONS = (
    Restriction(
        "bucket-holds-an-element",
        "a bucket must hold at least one gradient element of the wire dtype",
        lambda setup, context: setup.backend == "deepspeed" and _reduce_bucket_size(setup) == 0,
    ),
    Restriction(
        "scale-starts-above-its-floor",
        "an overflow would raise a loss scale that starts below its minimum",
        lambda setup, context: (
            setup.backend == "deepspeed"
            and setup.loss_scale is not None
            and 2**setup.loss_scale.initial_power < setup.loss_scale.minimum
        ),
    ),
)

DEEPSPEED = Dialect(
    template="deepspeed/config.json.j2",
    file_name="ds_config.json",
    variables=variables,
    restrictions=RESTRICTIONS,
)
