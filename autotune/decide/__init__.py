"""Pure decisions on measured numbers: no I/O."""

from autotune.decide.confirm import (
    Candidates,
    Claim,
    Verdict,
    candidates,
    planned_confirmation,
    verdict,
)
from autotune.decide.race import (
    Block,
    Entry,
    Observation,
    Out,
    Rules,
    State,
    absorb,
    next_block,
    observe,
    resume,
    start_confirmation,
    start_race,
)
from autotune.decide.score import Standing, probe_ratios, standings, winner
from autotune.decide.screening import Screened, noise_floor, qualifiers, screen
from autotune.decide.stats import Estimate

__all__ = [
    "Block",
    "Candidates",
    "Claim",
    "Entry",
    "Estimate",
    "Observation",
    "Out",
    "Rules",
    "Screened",
    "Standing",
    "State",
    "Verdict",
    "absorb",
    "candidates",
    "next_block",
    "noise_floor",
    "observe",
    "planned_confirmation",
    "probe_ratios",
    "qualifiers",
    "resume",
    "screen",
    "standings",
    "start_confirmation",
    "start_race",
    "verdict",
    "winner",
]
