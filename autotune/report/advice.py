"""Every warning that a run deserves, with advice in the user's own settings."""

from __future__ import annotations

from autotune.report import claims, conditions, training
from autotune.report.evidence import Evidence
from autotune.report.warning import Warning


def advise(found: Evidence, run: str) -> list[Warning]:
    """The warnings: on the verdict, on training, on the conditions of measuring.

    Args:
        found: The run and its decisions.
        run: The run in commands, such as ``runs/mine``.
    """
    return [
        *claims.unconfirmed(found, run),
        *claims.few_launches(found, run),
        *claims.control(found, run),
        *claims.backward_only(found),
        *claims.end_to_end(found),
        *claims.budget(found, run),
        *training.gate(found),
        *training.gate_warning(found),
        *training.ungated(found, run),
        *training.wire_at_scale(found),
        *training.skips(found),
        *training.limits(found),
        *training.unread(found),
        *conditions.noise_above_margin(found),
        *conditions.mean_median(found),
        *conditions.unsteady(found),
        *conditions.drift(found),
        *conditions.throttled(found),
        *conditions.busy(found),
    ]
