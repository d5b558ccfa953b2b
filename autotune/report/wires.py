"""What the gradient wire dtypes lose at the real run's world size, and whether that is allowed."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.numerics.findings import WireErrors
from autotune.numerics.names import wires_name
from autotune.numerics.reduction import TWO_RANKS, Grade, Prediction, grade
from autotune.report.evidence import Evidence
from autotune.setup import Setup

FEW_RANKS = 8  # one machine; on them a narrow sum is still nearly exact


def graded(found: Evidence, prediction: Prediction) -> Grade:
    """The grade of a prediction by the run's limits."""
    bound = found.gates.thresholds.bound("wire-error", found.baseline)
    return grade(prediction, warn=bound.warn, refuse=bound.limit)


def predicted(found: Evidence, setup: Setup) -> Sequence[Prediction]:
    """For each wire dtype at the target's world size, on batches like the setup's.

    Empty without a target, and where nothing was predicted.
    """
    ranks = found.target["world_size"]
    errors = None if ranks is None else found.findings.get(wires_name(setup, ranks))
    return errors.predictions if isinstance(errors, WireErrors) else ()


def own(found: Evidence, setup: Setup) -> Prediction | None:
    """That of the setup's own wire dtype."""
    wire = setup.grad_comm_dtype
    return next((item for item in predicted(found, setup) if item.wire == wire), None)


def unseen(found: Evidence, setup: Setup) -> str | None:
    """What cannot be known of a narrow wire dtype without a target; None where nothing is amiss."""
    few = found.target["world_size"] is None and 1 < found.ranks <= FEW_RANKS
    if setup.grad_comm_dtype == "fp32" or not few:
        return None
    hardly = (
        f"A measurement on {found.ranks} ranks hardly shows it: the error comes from the many "
        "additions of a large job."
    )
    return (
        f"What {setup.grad_comm_dtype} on the wire loses over many ranks was not predicted. "
        f"{TWO_RANKS if found.ranks == 2 else hardly}"
    )
