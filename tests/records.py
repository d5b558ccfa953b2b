"""Made-up records of whole runs: search, race and confirmation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.outcome import Phase, Probe
from autotune.setup import Setup
from tests.build import make_measurement, make_probe, make_setup

BASELINE = make_setup()
BF16 = make_setup(precision="bf16", grad_comm_dtype="bf16")
BF16_FP32_WIRE = make_setup(precision="bf16")
STAGE3 = make_setup(zero_stage=3)
FSDP = make_setup(backend="fsdp", precision="bf16", grad_comm_dtype="bf16")

LEVELS = (1.0, 1.1, 0.95, 1.05, 0.9, 1.0)  # of the launches of six blocks
SAME = (1.0, 1.01, 0.99, 1.0, 0.99, 1.01)  # the baseline against itself
GAIN = (1.30, 1.32, 1.31, 1.29, 1.33, 1.31)
NO_GAIN = (0.99, 0.985, 1.0, 0.99, 0.995, 0.985)
UNCLEAR = (1.03, 0.97, 1.06, 0.99, 1.05, 1.0)
Series = Mapping[Setup, Sequence[float]]


def searched() -> list[Probe]:
    """A search: a winner, a failure, one stopped early and one that is far behind."""
    return [
        make_probe(0, BASELINE, baseline=True, measurement=make_measurement(0.1, steps=2)),
        make_probe(1, BF16, measurement=make_measurement(0.07, end_to_end=0.4, steps=2)),
        make_probe(2, FSDP, kind="oom"),
        make_probe(3, STAGE3, kind="pruned", saved_seconds=1.5),
        make_probe(
            4, BF16_FP32_WIRE, measurement=make_measurement(0.075, end_to_end=0.42, steps=2)
        ),
        make_probe(5, BASELINE, baseline=True, measurement=make_measurement(0.102, steps=2)),
    ]


def blocks(
    phase: Phase,
    ratios: Series,
    *,
    after: Sequence[Probe] = (),
    end_to_end: Series | None = None,
    control: Sequence[float] = SAME,
    levels: Sequence[float] = LEVELS,
    round: int = 0,
) -> list[Probe]:
    """Blocks of a race or a confirmation, each in a launch of its own.

    Args:
        phase: Which of the two.
        ratios: Of each setup to the baseline, one a block.
        after: The probes before, whose numbering goes on.
        end_to_end: The same for the whole step; by default half of the gain.
        control: Of the baseline to itself.
        levels: Slowness of each launch.
        round: Number of the confirmation.
    """
    probes: list[Probe] = []
    launch = 1 + max((probe.launch for probe in after), default=-1)
    for block in range(len(next(iter(ratios.values())))):
        speeds: list[tuple[Setup, bool, float, float]] = [(BASELINE, False, 1.0, 1.0)]
        if phase == "confirm":
            speeds.append((BASELINE, True, control[block], 1.0))
        for setup, values in ratios.items():
            whole = end_to_end[setup][block] if end_to_end else (1 + values[block]) / 2
            speeds.append((setup, False, values[block], whole))
        for setup, again, backward, whole in speeds:
            measured = make_measurement(
                0.1 * levels[block] / backward, end_to_end=0.5 * levels[block] / whole, steps=2
            )
            probes.append(
                make_probe(
                    len(after) + len(probes),
                    setup,
                    measurement=measured,
                    baseline=setup == BASELINE,
                    control=again,
                    phase=phase,
                    block=block,
                    round=round,
                    launch=launch + block,
                )
            )
    return probes


def run_of(
    confirmed: Series,
    *,
    end_to_end: Series | None = None,
    control: Sequence[float] = SAME,
    levels: Sequence[float] = LEVELS,
) -> list[Probe]:
    """A search, a race over three blocks, and a confirmation."""
    probes = searched()
    race = {BF16: (1.31, 1.33, 1.32), BF16_FP32_WIRE: (1.25, 1.27, 1.24)}
    probes += blocks("race", race, after=probes)
    probes += blocks(
        "confirm", confirmed, after=probes, end_to_end=end_to_end, control=control, levels=levels
    )
    return probes


def about_of(*candidates: Setup, most: int = 6, **changes: Any) -> dict[str, Any]:
    """What the store keeps with such a run."""
    phase = {"launches": 1, "probes": 6, "seconds": 30.0, "launch_seconds": 9.0}
    entrants = [BF16.to_dict(), BF16_FP32_WIRE.to_dict()]
    return {
        "baseline": BASELINE.to_dict(),
        "margin": 0.01,
        "removed": [{"restriction": "tf32-needs-ampere", "count": 3, "reason": "why", "keys": []}],
        "planned": {"setups": 5, "probes": None, "minutes": 3},
        "spent": {
            "search": {**phase, "probe_seconds": 18.0},
            "race": {**phase, "launches": 3, "probes": 9, "probe_seconds": 20.0},
            "confirm": {**phase, "launches": 6, "probes": 24, "seconds": 60.0, "probe_seconds": 40},
        },
        "fingerprint": {"torch": "1", "measure": {"warm_up_cap": 12, "timed_steps": 10}},
        "race": {
            "entrants": entrants,
            "log_ratios": [0.36, 0.29],
            "dropped": [],
            "limit": 0.08,
            "noise_floor": 0.02,
        },
        "confirmations": [
            {
                "setups": [setup.to_dict() for setup in candidates],
                "distance": 0.2,
                "most": most,
                "race_out": [],
                "race_blocks": 3,
            }
        ],
        "cuts": [],
        **changes,
    }


def trained(
    probes: Sequence[Probe], *, steps: int = 20, skips: int = 0, useful: float | None = None
) -> list[Probe]:
    """The probes; those with a loss scale trained so many steps and skipped so many of them."""
    known: dict[str, Any] = {
        "trained_steps": steps,
        "trained_skips": skips,
        "useful_step_fraction": useful,
    }
    return [
        replace(
            probe,
            outcome=replace(probe.outcome, measurement=replace(probe.outcome.measurement, **known)),
        )
        if probe.setup.loss_scale is not None and probe.outcome.measurement is not None
        else probe
        for probe in probes
    ]
