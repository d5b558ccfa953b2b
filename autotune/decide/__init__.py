"""Pure decisions on measured numbers: no I/O."""

from autotune.decide.score import Standing, probe_ratios, standings, winner

__all__ = ["Standing", "probe_ratios", "standings", "winner"]
