"""DDP's stand-alone Python module."""

from __future__ import annotations

from autotune.backends.dialect import GRADIENT_CLIPPING, Dialect
from autotune.setup import Precision, Setup, WireDtype


def variables(setup: Setup) -> dict[str, object]:
    """Variables of the DDP template.

    Beside the knobs: ``gradient_clipping``, ``compute_dtype`` (None computes in the model's
    float32), ``wire_dtype`` and ``matmul_precision`` in torch's words. ``bucket_bytes`` are bytes
    on the wire; the module turns them into MiB of float32 gradients, which is what DDP counts.
    """
    return {
        **setup.to_dict(),
        "gradient_clipping": GRADIENT_CLIPPING,
        "compute_dtype": _compute_dtype(setup.precision),
        "wire_dtype": setup.grad_comm_dtype,
        "matmul_precision": "high" if setup.precision == "tf32" else "highest",
    }


def _compute_dtype(precision: Precision) -> WireDtype | None:
    return None if precision == "fp32" or precision == "tf32" else precision


DDP = Dialect(
    template="ddp/ddp_setup.py.j2",
    file_name="ddp_setup.py",
    variables=variables,
    # DDP takes a bucket of any size: one that is smaller than a gradient holds this gradient.
    restrictions=(),
)
