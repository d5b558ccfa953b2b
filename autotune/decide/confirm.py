"""Who goes into the confirmation, with how many launches, and the verdict that ends it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from autotune.decide.race import (
    LEAST_LAUNCHES,
    Entry,
    Out,
    Rules,
    State,
    against_baseline,
    behind,
    claim_confidence,
    spread_of,
    start_confirmation,
)
from autotune.decide.stats import Estimate, estimate, holm, launches_for, slower_p
from autotune.setup import Setup

VerdictName = Literal["confirmed", "keep-baseline", "inconclusive"]
RIVALS = 2  # candidates beside the leader
MOST_LAUNCHES = 30
ERRORS = 2  # standard errors by which the expected gain may be wrong
MEMORY_STEP = math.log(1.05)  # peaks closer than 5 % count as equal
WIRES = ("fp32", "bf16", "fp16")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Candidates:
    """Who is confirmed, and in how many launches.

    Attributes:
        setups: The leader first, then at most `RIVALS`.
        distance: Log ratio between the expected gain and the margin, and at least the margin.
        launches: Launches that the confirmation is expected to take.
    """

    setups: tuple[Setup, ...]
    distance: float
    launches: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A candidate against the baseline, in the confirmation alone.

    Attributes:
        setup: The candidate.
        backward: Log ratio of backward throughput.
        end_to_end: Log ratio of end-to-end throughput.
    """

    setup: Setup
    backward: Estimate
    end_to_end: Estimate

    @property
    def may_win(self) -> bool:
        """Whether the whole step was not shown to be slower than the baseline's."""
        return self.end_to_end.high >= 0.0

    def leaves_open(self, log_margin: float) -> bool:
        """Whether it may win and its interval contains 1 + margin."""
        return self.may_win and not self.backward.excludes(log_margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a sweep ends.

    Attributes:
        name: ``confirmed``, ``keep-baseline`` or ``inconclusive``.
        why: One sentence on what decided it.
        winner: The setup to use.
        claim: What was shown about the winner; when the baseline is kept, about its best
            challenger; when nothing is decided, about one that left it open, if any did. None
            when nothing was compared.
        equivalent: Candidates that cannot be told apart from the fastest one.
        launches: Complete blocks behind it.
        control: Log ratio of the baseline to itself; None for under 2 launches.
        claims: Every candidate that came through.
        out: Candidates that failed.
    """

    name: VerdictName
    why: str
    winner: Setup
    claim: Claim | None = None
    equivalent: tuple[Setup, ...] = ()
    launches: int = 0
    control: Estimate | None = None
    claims: tuple[Claim, ...] = ()
    out: tuple[Out, ...] = ()


def preference(setup: Setup, baseline: Setup, peak_memory_bytes: float) -> tuple[object, ...]:
    """Sort key among setups that cannot be told apart; the first is chosen.

    Safer wire dtype, then safer precision, then less memory (in steps of 5 %), then fewer
    changes from the baseline.
    """
    before, now = baseline.to_dict(), setup.to_dict()
    return (
        WIRES.index(setup.grad_comm_dtype),
        PRECISIONS.index(setup.precision),
        round(math.log(max(peak_memory_bytes, 1.0)) / MEMORY_STEP),
        sum(now[knob] != before[knob] for knob in now),
        setup.key,
    )


def peak_of(state: State, setup: Setup) -> float:
    """Mean peak memory of a setup over the blocks, bytes; 0 before the first."""
    peaks = [row[Entry(setup)].peak_memory_bytes for row in state.rows if Entry(setup) in row]
    return fmean(peaks) if peaks else 0.0


def candidates(
    race: State,
    screened: Mapping[Setup, float],
    noise_floor: float,
    risky: frozenset[Setup] = frozenset(),
) -> Candidates:
    """The leader, the setup that the tie rule prefers, and the next best.

    Where all of them are risky, the best that is not comes in, even if the race found it slower:
    the choice between more speed and less risk needs its numbers.

    Args:
        race: The race when it is over, or before its first block when it was skipped.
        screened: Log ratio of each entrant to the baseline in the search; used without blocks.
        noise_floor: Standard deviation of the log ratio of two probes of one setup in one
            launch; used as the spread when the race had fewer than 2 blocks.
        risky: As in `State`.

    Returns:
        The distance is that of the nearer end of the expected gain's range, +- 2 standard
        errors, since the leader's estimate is optimistic.
    """
    ranked = sorted(race.setups, key=lambda setup: _gain(race, setup, screened), reverse=True)
    if not ranked:
        return Candidates((), 0.0, 0)
    chosen = _with_a_safe_one(race, _leader_and_rivals(race, ranked), screened, risky)
    spread = spread_of(race) if len(race.rows) > 1 else noise_floor
    error = spread / math.sqrt(max(1, len(race.rows)))
    margin = race.rules.log_margin
    distance = max(margin, abs(_gain(race, ranked[0], screened) - margin) - ERRORS * error)
    launches = launches_for(
        distance,
        spread,
        claim_confidence(race.rules, len(chosen)),
        least=LEAST_LAUNCHES,
        most=MOST_LAUNCHES,
    )
    return Candidates(chosen, distance, launches)


def _leader_and_rivals(race: State, ranked: Sequence[Setup]) -> tuple[Setup, ...]:
    leader, *others = ranked
    if not others:
        return (leader,)
    safest = min(others, key=lambda item: preference(item, race.baseline, peak_of(race, item)))
    rest = [item for item in others if item != safest]
    return (leader, safest, *rest[: RIVALS - 1])


def _with_a_safe_one(
    race: State,
    chosen: tuple[Setup, ...],
    screened: Mapping[Setup, float],
    risky: frozenset[Setup],
) -> tuple[Setup, ...]:
    if not risky.issuperset(chosen):
        return chosen
    failed = {item.setup for item in race.out if item.failed}
    safe = [item for item in race.entrants if item not in risky | failed]
    if not safe:
        return chosen
    leader, *others = chosen
    best = max(safe, key=lambda item: screened.get(item, 0.0))
    return (leader, best, *others[: RIVALS - 1])


def _gain(race: State, setup: Setup, screened: Mapping[Setup, float]) -> float:
    """Log ratio to the baseline by the race, or by the search where no block was run."""
    return fmean(against_baseline(race, setup)) if race.rows else screened[setup]


def planned_confirmation(rules: Rules, baseline: Setup, plan: Mapping[str, Any]) -> State:
    """A confirmation before its first probe, from the plan that the run keeps (JSON types)."""
    return start_confirmation(
        rules,
        baseline,
        tuple(map(Setup.from_dict, plan["setups"])),
        distance=plan["distance"],
        most=plan["most"],
        risky=frozenset(map(Setup.from_dict, plan.get("risky", []))),
    )


def verdict(state: State) -> Verdict:
    """The verdict of a confirmation, on its own blocks alone.

    ``confirmed``: the interval of a candidate lies above 1 + margin, with Bonferroni over the
    candidates. ``keep-baseline``: those of all candidates lie below it. ``inconclusive``:
    otherwise, with fewer than `LEAST_LAUNCHES` launches, or when the baseline differs from itself.

    A risky candidate is passed over, however fast, where another one is confirmed.
    """
    assert state.stage == "confirm"
    if not state.entrants:
        return Verdict(
            name="keep-baseline", why="nothing came close enough to it", winner=state.baseline
        )
    launches = len(state.rows)
    if launches < 2 or not state.setups:
        too_few = f"{launches} launches are too few, a verdict takes {LEAST_LAUNCHES}"
        return Verdict(
            name="inconclusive",
            why=too_few if state.setups else "every candidate failed",
            winner=state.baseline,
            launches=launches,
            out=state.out,
        )
    return _judge(state, _control(state))


def _claims(state: State, confidence: float) -> tuple[Claim, ...]:
    return tuple(
        Claim(
            setup,
            estimate(against_baseline(state, setup), confidence),
            estimate(against_baseline(state, setup, "end_to_end"), confidence),
        )
        for setup in state.setups
    )


def _control(state: State) -> Estimate:
    """The baseline against itself: both probes run one text under two labels."""
    first, second = Entry(state.baseline), Entry(state.baseline, control=True)
    ratios = [row[second].backward - row[first].backward for row in state.rows]
    return estimate(ratios, state.rules.control_confidence)


def _judge(state: State, control: Estimate) -> Verdict:
    claims = _claims(state, claim_confidence(state.rules, len(state.entrants)))
    able = _safe(state, [claim for claim in claims if claim.may_win])
    alike = _alike(state, able)
    shown = _shown(state, alike) or _shown(state, able)
    name, why = _name(state, bool(able), bool(shown), control)
    if name == "keep-baseline":
        claims = _claims(state, state.rules.confidence)
    undecided = name == "inconclusive" and (_undecided(state, alike) or _undecided(state, able))
    leading = _choose(state, shown or undecided or alike or claims)
    keeps = name == "keep-baseline" or leading.backward.mean <= 0 or not leading.may_win
    return Verdict(
        name=name,
        why=why,
        winner=state.baseline if keeps else leading.setup,
        claim=next(claim for claim in claims if claim.setup == leading.setup),
        equivalent=tuple(claim.setup for claim in alike),
        launches=len(state.rows),
        control=control,
        claims=claims,
        out=state.out,
    )


def _safe(state: State, able: Sequence[Claim]) -> Sequence[Claim]:
    """Without the risky ones, if any other is shown to gain."""
    safe = [claim for claim in able if claim.setup not in state.risky]
    return safe if _shown(state, safe) else able


def _shown(state: State, claims: Sequence[Claim]) -> list[Claim]:
    """Claims whose interval lies above 1 + margin."""
    return [claim for claim in claims if claim.backward.low > state.rules.log_margin]


def _undecided(state: State, claims: Sequence[Claim]) -> list[Claim]:
    """What an inconclusive verdict is about."""
    return [claim for claim in claims if claim.leaves_open(state.rules.log_margin)]


def _name(state: State, able: bool, shown: bool, control: Estimate) -> tuple[VerdictName, str]:
    margin = state.rules.margin
    if len(state.rows) < LEAST_LAUNCHES:
        return "inconclusive", (
            f"{len(state.rows)} launches are too few, a verdict takes {LEAST_LAUNCHES}"
        )
    if control.excludes(0.0):
        low, high = control.interval
        return "inconclusive", (
            f"the baseline differs from itself ({low:.3f}x to {high:.3f}x), so other differences "
            "mean nothing"
        )
    if shown:
        return "confirmed", f"the interval lies above 1 + margin ({1 + margin:g})"
    if _all_below(state):
        slower = "" if able else "; every candidate is slower end-to-end"
        return (
            "keep-baseline",
            f"no candidate gains more than the margin of {100 * margin:g} %{slower}",
        )
    return "inconclusive", f"the interval contains 1 + margin ({1 + margin:g})"


def _all_below(state: State) -> bool:
    """Whether no candidate that may win gains more than the margin.

    That all of them stay below is one claim, wrong only if the largest true gain is above: each
    interval may be taken at the full level (an intersection-union test; Berger, R. L. (1982),
    Technometrics 24, 295-300).
    """
    claims = _claims(state, state.rules.confidence)
    return all(claim.backward.high < state.rules.log_margin for claim in claims if claim.may_win)


def _alike(state: State, able: Sequence[Claim]) -> list[Claim]:
    """The fastest claim and those that a paired t-test with Holm cannot tell from it."""
    if not able:
        return []
    best = max(able, key=lambda claim: claim.backward.mean)
    others = [claim for claim in able if claim is not best]
    p_values = [slower_p(behind(state, claim.setup, best.setup)) for claim in others]
    slower = holm(p_values, 1 - state.rules.confidence)
    return [best, *(claim for claim, worse in zip(others, slower, strict=True) if not worse)]


def _choose(state: State, claims: Sequence[Claim]) -> Claim:
    """By the tie rule, never by the noisy mean."""
    return min(
        claims,
        key=lambda claim: preference(claim.setup, state.baseline, peak_of(state, claim.setup)),
    )
