"""The noise of a machine, measured on scripted launches."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from autotune.setup import Setup
from autotune.sweep import Bench, measure_noise
from autotune.sweep.noise import PROBES
from tests.scripted import (
    LAUNCH_SECONDS,
    PROBE_SECONDS,
    ScriptedLauncher,
    Where,
    make_plan,
    new_store,
)


def bench(folder: Path, probe_noise: float, launch_noise: float) -> Bench:
    chance = random.Random(0)
    levels: dict[int, float] = {}

    def rule(setup: Setup, where: Where) -> float:
        launch = len(launcher.started)
        level = levels.setdefault(launch, chance.gauss(0, launch_noise))
        return level + chance.gauss(0, probe_noise)

    launcher = ScriptedLauncher(rule)
    plan = make_plan(folder)
    return Bench(plan, new_store(plan), launcher, launcher.hear)


def test_the_floor_is_the_noise_of_a_paired_ratio_and_launches_do_not_enter(
    tmp_path: Path,
) -> None:
    found = measure_noise(bench(tmp_path, probe_noise=0.02, launch_noise=0.2), launches=100)
    assert found.floor == pytest.approx(0.02 * 2**0.5, rel=0.15)
    assert found.between_launches == pytest.approx(0.2, rel=0.25)
    assert found.probe_seconds == PROBE_SECONDS
    assert found.launch_seconds == pytest.approx(LAUNCH_SECONDS)


def test_more_launches_resolve_smaller_gains_and_none_below_the_margin(tmp_path: Path) -> None:
    found = measure_noise(bench(tmp_path, probe_noise=0.02, launch_noise=0.0), launches=10)
    ratios = [item.ratio for item in found.resolutions]
    assert ratios == sorted(ratios, reverse=True)
    assert min(ratios) > 1 + found.margin
    minutes = [item.minutes * 60 / item.launches for item in found.resolutions]
    assert minutes == pytest.approx([LAUNCH_SECONDS + 3 * PROBE_SECONDS] * len(minutes))


def test_every_launch_is_fresh_and_probes_the_baseline_four_times(tmp_path: Path) -> None:
    running = bench(tmp_path, probe_noise=0.01, launch_noise=0.0)
    measure_noise(running, launches=3)
    launches = [probe.launch for probe in running.probes]
    assert launches == [number for number in range(3) for _ in range(PROBES)]
    assert {probe.setup for probe in running.probes} == {running.plan.baseline}
