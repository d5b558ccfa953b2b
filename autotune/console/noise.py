"""The noise of a machine, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.console.formats import format_ratios


def noise_lines(noise: Mapping[str, Any]) -> list[str]:
    """What ``doctor --noise`` found: the noise floor, and which gains it lets through.

    Args:
        noise: ``baseline``, ``floor``, ``between_launches``, ``launch_seconds``,
            ``probe_seconds``, ``margin`` and ``resolutions``, each with ``launches``, ``ratio``
            and ``minutes``.
    """
    between = noise["between_launches"]
    return [
        f"baseline          {noise['baseline']}",
        f"noise floor       {100 * noise['floor']:.1f} % (two probes of one setup in one launch)",
        *(
            []
            if between is None
            else [f"between launches  {100 * between:.1f} % (cancels, setups share a launch)"]
        ),
        f"costs             {noise['launch_seconds']:.1f} s a launch, "
        f"{noise['probe_seconds']:.1f} s a probe",
        f"one candidate against the baseline, margin {100 * noise['margin']:.3g} %:",
        *(_resolution(item) for item in noise["resolutions"]),
    ]


def _resolution(item: Mapping[str, Any]) -> str:
    (ratio,) = format_ratios([item["ratio"]])
    return (
        f"  {item['launches']:3d} launches, {item['minutes']:.1f} minutes: gains from {ratio} are "
        "confirmed in 9 of 10 sweeps"
    )
