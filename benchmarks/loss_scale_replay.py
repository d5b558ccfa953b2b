"""How fast loss scales are replayed: 2,000 policies over 100,000 steps, on one thread.

Run as ``python benchmarks/loss_scale_replay.py [--policies N] [--steps N]``. The aim is 10 s for
each scaler. Prints, for traces of steady and of noisy gradients and for each scaler, 10 s over the
time that the replay took: more than 1 keeps to the aim. Noise is normal, in bits; the policies are
drawn from those that a sweep tries, with other windows where these are too few.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy

import argparse
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from autotune.numerics.loss_scale import Powers, replay
from autotune.readings import LEAST_POWER, MOST_POWER
from autotune.scales import DEFAULT_SCALE_AXES, DEFAULTS, all_scales
from autotune.setup import LossScale, Scaler

AIM_SECONDS = 10.0
LEVEL = 14  # the middle of the largest finite powers
NOISES = (0.0, 1.0, 4.0)


def line(name: str, cells: Sequence[str]) -> str:
    """One row of the table."""
    return name.ljust(20) + "".join(cell.rjust(14) for cell in cells)


def drawn_policies(scaler: Scaler, number: int) -> list[LossScale]:
    """As many different policies as asked for, of all first scales, windows and floors."""
    windows = DEFAULT_SCALE_AXES["window"]
    for more in count():
        found = all_scales({"window": (*windows, *range(1000, 1000 + more))}, scaler)
        if len(found) >= number:
            break
    order = np.random.default_rng(0).permutation(len(found))
    return [found[place] for place in order[:number]]


def drawn_powers(steps: int, noise: float) -> Powers:
    """The largest finite power of each step, shape (steps,)."""
    bits = LEVEL + noise * np.random.default_rng(0).normal(size=steps)
    powers: Powers = np.clip(bits.round(), LEAST_POWER - 1, MOST_POWER).astype(np.int8)
    return powers


def ratio(scaler: Scaler, policies: Sequence[LossScale], powers: Powers) -> float:
    """10 s over the time of one replay."""
    begin = perf_counter()
    replay(scaler, policies, powers)
    return AIM_SECONDS / (perf_counter() - begin)


def main() -> None:
    """Replays and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policies", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=100_000)
    given = parser.parse_args()
    print(line("10 s over the time", [f"{noise:g} bits noise" for noise in NOISES]))
    for scaler in DEFAULTS:
        policies = drawn_policies(scaler, given.policies)
        ratios = [ratio(scaler, policies, drawn_powers(given.steps, noise)) for noise in NOISES]
        print(line(scaler, [f"{found:.1f}" for found in ratios]))


if __name__ == "__main__":
    main()
