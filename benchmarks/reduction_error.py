"""What a sum over many ranks loses in each wire dtype, and how well few gradients predict it.

Run as ``python benchmarks/reduction_error.py [--seeds N]``. The gradients are synthetic: lognormal
means of random sign and unit normal noise, snr = mean over noise. Prints the relative error of
the sum, median over seeds; then the prediction from 16 micro-batches over the truth, smallest,
median and largest over seeds, for these means and for normal ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from autotune.numerics.reduction import Algorithm, error_of_sum, reduction_error
from autotune.setup import WireDtype
from tests.unit.test_reduction import MICRO_BATCHES, RANKS, SNRS, SPREAD, synthetic

ELEMENTS = 20_000
COLUMNS: tuple[tuple[WireDtype, Algorithm, float], ...] = (
    *(("bf16", "ring", snr) for snr in SNRS),
    ("bf16", "tree", 0.3),
    ("bf16", "fp32-accumulate", 0.3),
    ("fp16", "ring", 0.3),
    ("fp32", "ring", 0.3),
)


def line(name: str, cells: Sequence[str]) -> str:
    """One row of a table."""
    return name.ljust(16) + "".join(cell.rjust(25) for cell in cells)


def truths(ranks: int, seeds: int) -> list[str]:
    """The errors of one world size, column by column."""
    return [
        f"{median(truth(ranks, *column, seed) for seed in range(seeds)):.1e}" for column in COLUMNS
    ]


def truth(ranks: int, wire: WireDtype, algorithm: Algorithm, snr: float, seed: int) -> float:
    """The error of one sum."""
    return error_of_sum(synthetic(ranks, ELEMENTS, snr, seed), wire, algorithm)


def accuracy(ranks: int, snr: float, spread: float, seeds: int) -> str:
    """Predicted error of a bf16 ring over the true one."""
    ratios = []
    for seed in range(seeds):
        gradients = synthetic(MICRO_BATCHES + ranks, ELEMENTS, snr, seed, spread)
        seen, unseen = gradients[:MICRO_BATCHES], gradients[MICRO_BATCHES:]
        predicted = reduction_error(seen, ranks, "bf16", "ring", seed=seed)
        ratios.append(predicted / error_of_sum(unseen, "bf16", "ring"))
    return " ".join(f"{found - 1:+.0%}" for found in (min(ratios), median(ratios), max(ratios)))


def main() -> None:
    """Sums, predicts and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    print(line("ranks", [f"{wire} {how} {snr:g}" for wire, how, snr in COLUMNS]))
    for ranks in RANKS:
        print(line(f"{ranks}", truths(ranks, seeds)))
    snrs = (0.05, 0.1, 0.3, 1.0)
    print("\n" + line("means, ranks", [f"snr {snr:g}" for snr in snrs]))
    for name, spread in (("lognormal", SPREAD), ("normal", 0.0)):
        for ranks in (64, 256, 512):
            cells = [accuracy(ranks, snr, spread, seeds) for snr in snrs]
            print(line(f"{name}, {ranks}", cells))


if __name__ == "__main__":
    main()
