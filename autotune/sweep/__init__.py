"""The loop: search, race, confirm."""

from autotune.sweep.bench import Bench
from autotune.sweep.loop import End, Sweep
from autotune.sweep.noise import Noise, measure_noise
from autotune.sweep.plan import Plan, Spent

__all__ = ["Bench", "End", "Noise", "Plan", "Spent", "Sweep", "measure_noise"]
