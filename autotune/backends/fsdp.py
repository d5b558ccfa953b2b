"""FSDP2's stand-alone Python module."""

from __future__ import annotations

from autotune.backends.dialect import GRADIENT_CLIPPING, Dialect
from autotune.setup import Precision, Setup, WireDtype
from autotune.space import Restriction


def variables(setup: Setup) -> dict[str, object]:
    """Variables of the FSDP2 template.

    Beside the knobs: ``gradient_clipping``, ``param_dtype`` (None keeps the model's float32),
    ``reduce_dtype``, ``reshard_after_forward`` and ``matmul_precision`` in torch's words.
    """
    return {
        **setup.to_dict(),
        "gradient_clipping": GRADIENT_CLIPPING,
        "param_dtype": _param_dtype(setup.precision),
        "reduce_dtype": setup.grad_comm_dtype,
        "reshard_after_forward": setup.zero_stage == 3,
        "matmul_precision": "high" if setup.precision == "tf32" else "highest",
    }


def _param_dtype(precision: Precision) -> WireDtype | None:
    return None if precision == "fp32" or precision == "tf32" else precision


RESTRICTIONS = (
    Restriction(
        "fsdp-shards-gradients",
        "FSDP2 always shards gradients and optimizer state: its stages are 2 and 3",
        lambda setup, context: setup.backend == "fsdp" and setup.zero_stage < 2,
    ),
)

FSDP = Dialect(
    template="fsdp/fsdp_setup.py.j2",
    file_name="fsdp_setup.py",
    variables=variables,
    restrictions=RESTRICTIONS,
)
