"""How often the verdict of a sweep is wrong, on simulated machines whose true speeds are known.

Run as ``python benchmarks/error_rates.py [--repeats N]``. Each repeat is one whole sweep (search,
race, confirmation) through the code that decides, with 2 % noise of each launch and 2 % of each
probe. The naive rule takes the best of one probe each, in the same search, and claims a gain
when its ratio exceeds 1 + margin.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.simulation.run import Rates, play, rates
from tests.simulation.world import SCENARIOS

WIDTH = 30
OURS = ("confirmed", "of best", "keep", "coverage", "inflation", "regret", "launches", "probes")
NAIVE = ("claims", "inflation", "regret")


def line(name: str, cells: Sequence[str]) -> str:
    """One row of the table."""
    return name.ljust(WIDTH) + "".join(cell.rjust(11) for cell in cells)


def ours(found: Rates) -> list[str]:
    """The cells of the sweep's verdicts."""
    shares = (found.confirmed, found.confirmed_right, found.keep_baseline, found.coverage)
    return [
        *(f"{100 * share:.1f} %" for share in shares),
        "-" if math.isnan(found.inflation) else f"{found.inflation:+.2f}",
        f"{found.regret:.2f} %",
        f"{found.launches:.1f}",
        f"{found.probes:.0f}",
    ]


def naive(found: Rates) -> list[str]:
    """The cells of the naive rule."""
    return [
        f"{100 * found.naive_claims:.1f} %",
        f"{found.naive_inflation:+.2f}",
        f"{found.naive_regret:.2f} %",
    ]


def main() -> None:
    """Simulates and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    found = {
        scenario.name: rates([play(scenario, seed) for seed in range(repeats)])
        for scenario in SCENARIOS
    }
    print(f"{repeats} sweeps a scenario; inflation in points, regret in % of the baseline's speed")
    print("\n" + line("search, race, confirm", OURS))
    for name, item in found.items():
        print(line(name, ours(item)))
    print("\n" + line("naive: best of one probe each", NAIVE))
    for name, item in found.items():
        print(line(name, naive(item)))


if __name__ == "__main__":
    main()
