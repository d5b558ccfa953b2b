"""The baseline against itself: what differences this machine can resolve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev

from autotune.decide import noise_floor
from autotune.decide.confirm import MOST_LAUNCHES
from autotune.decide.race import LEAST_LAUNCHES, Rules
from autotune.decide.screening import baseline_logs
from autotune.decide.stats import AGAINST_TWO, resolvable
from autotune.sweep.bench import Bench

PROBES = 4  # in a launch
LAUNCHES = (LEAST_LAUNCHES, 8, 12, 20, MOST_LAUNCHES)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a confirmation of one candidate can show.

    Attributes:
        launches: Its launches.
        ratio: The smallest true ratio that ends ``confirmed`` in 9 of 10 sweeps.
        minutes: What the launches take.
    """

    launches: int
    ratio: float
    minutes: float


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of a machine on one workload.

    Attributes:
        floor: Standard deviation of the log ratio of two probes of one setup in one launch.
        between_launches: Standard deviation of the log throughput of whole launches, which
            pairing removes; None for one launch.
        launch_seconds: To start and warm a launch.
        probe_seconds: One probe of the baseline.
        margin: Of the sweep file; 0.01 is 1 %.
        resolutions: By number of launches.
    """

    floor: float
    between_launches: float | None
    launch_seconds: float
    probe_seconds: float
    margin: float
    resolutions: tuple[Resolution, ...]


def measure_noise(bench: Bench, launches: int) -> Noise:
    """Probes the baseline four times in each of ``launches`` fresh launches.

    Raises:
        EnvironmentFailedError: The baseline cannot be measured.
    """
    while len(baseline_logs(bench.probes)) < launches and not bench.interrupted:
        with bench.launch("confirm") as launch:
            for _ in range(PROBES if launch is not None else 0):
                assert launch is not None
                if bench.interrupted or not launch.alive:
                    break
                probe = bench.probe(launch, bench.plan.baseline, phase="confirm", baseline=True)
                bench.keep(probe, None)
                if probe.outcome.kind != "ok":
                    bench.baseline_failed(probe.outcome)
                    break
                bench.baseline_measured()
    return _noise(bench)


def _noise(bench: Bench) -> Noise:
    means = [fmean(logs) for logs in baseline_logs(bench.probes).values()]
    floor, costs, rules = noise_floor(bench.probes) or 0.0, bench.costs, bench.plan.rules
    return Noise(
        floor=floor,
        between_launches=stdev(means) if len(means) > 1 else None,
        launch_seconds=costs.launch_seconds,
        probe_seconds=costs.probe_seconds,
        margin=rules.margin,
        resolutions=tuple(
            Resolution(
                launches=number,
                ratio=math.exp(rules.log_margin + _distance(floor, number, rules)),
                minutes=number * costs.block(3).seconds / 60,
            )
            for number in LAUNCHES
        ),
    )


def _distance(floor: float, launches: int, rules: Rules) -> float:
    return resolvable(floor * AGAINST_TWO, launches, rules.confidence)
