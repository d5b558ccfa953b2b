"""The race and the confirmation as a pure state machine: no clock, no file, no chance of its own.

A block is one probe of every entry in one fresh launch, so its log ratios are paired and the
launch's own level cancels. Feed `absorb` what each probe found, ask `next_block` what to probe
next; when it answers None the state is decided, and `verdict` (confirm.py) reads it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import Literal

from autotune.decide.stats import holm, launches_for, slower_p
from autotune.outcome import OutcomeKind, Probe
from autotune.setup import Setup

Stage = Literal["race", "confirm"]
TOLERATED = 1  # launches that a setup may lose in a phase before it is out; others lose none
LOSES_LAUNCH: tuple[OutcomeKind, ...] = ("crash", "hang")
LEAST_LAUNCHES = 6  # of a confirmation: t intervals of fewer are wide, and one odd launch decides
SPOILED_IN_A_ROW = 2  # blocks without a baseline; then the environment is at fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Fixed before the first probe.

    Attributes:
        margin: Gains below it are not worth a change; 0.01 is 1 %.
        looks: Complete blocks after which the race may eliminate.
        level: Chance, over all looks, that the race eliminates a setup that is not slower.
        confidence: Of the claimed interval, over all candidates together.
        control_confidence: Of the baseline against itself. Higher, because this alarm would
            otherwise stop one sound run in twenty.
        seed: Of the orders within the blocks.
    """

    margin: float = 0.01
    looks: tuple[int, ...] = (3, 5, 8)
    level: float = 0.05
    confidence: float = 0.95
    control_confidence: float = 0.99
    seed: int = 0

    @property
    def log_margin(self) -> float:
        """The margin as a log ratio."""
        return math.log1p(self.margin)


@dataclass(frozen=True, slots=True)
class Entry:
    """One probe of a block: a setup, or the baseline under its second label (A/A)."""

    setup: Setup
    control: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one probe of a block found.

    Attributes:
        launch: The launch that served it.
        entry: What was probed.
        kind: ``ok`` or how it failed.
        reason: Why it failed.
        backward: Log of the backward tokens per second at the median step; 0 when it failed.
        end_to_end: Log of the end-to-end tokens per second; 0 when it failed.
        peak_memory_bytes: Peak memory of the fullest rank; 0 when it failed.
    """

    launch: int
    entry: Entry
    kind: OutcomeKind
    reason: str | None = None
    backward: float = 0.0
    end_to_end: float = 0.0
    peak_memory_bytes: int = 0


def observe(probe: Probe) -> Observation:
    """What a block's probe says to the state machine."""
    entry = Entry(probe.setup, probe.control)
    kind, measured = probe.outcome.kind, probe.outcome.measurement
    if kind != "ok" or measured is None:
        return Observation(launch=probe.launch, entry=entry, kind=kind, reason=probe.outcome.reason)
    return Observation(
        launch=probe.launch,
        entry=entry,
        kind=kind,
        backward=math.log(measured.median_backward_tokens_per_second),
        end_to_end=math.log(measured.end_to_end_tokens_per_second),
        peak_memory_bytes=measured.peak_memory_bytes,
    )


Row = Mapping[Entry, Observation]  # a complete block


@dataclass(frozen=True, slots=True)
class Block:
    """What to probe next, in this order, in one fresh launch."""

    stage: Stage
    number: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Out:
    """A setup that left, after how many complete blocks, and why; whether a probe of it failed."""

    setup: Setup
    blocks: int
    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where a race or a confirmation stands. Made by `start`, changed by `absorb`.

    Attributes:
        stage: Which of the two.
        rules: Fixed beforehand.
        baseline: Always probed, never out.
        entrants: Setups that began, without the baseline.
        setups: Those still in.
        wanted: Complete blocks after which it is over. A confirmation sets it anew after the
            first `LEAST_LAUNCHES`, from their spread alone: looking at the mean would make the
            claim optimistic, looking at the spread does not.
        most: Complete blocks that may be wanted at most.
        distance: Log ratio between the expected gain and the margin, fixed before the
            confirmation.
        risky: Setups that are warned of in the real run; a confirmation prefers others that
            gain.
        rows: Complete blocks.
        open: Observations of the block under way, all of one launch.
        out: Setups that left.
        lost: Launches that setups still in have cost.
        spoiled: Blocks in a row that the baseline failed.
        closed: Whether a look found nothing left to decide.
    """

    stage: Stage
    rules: Rules
    baseline: Setup
    entrants: tuple[Setup, ...]
    setups: tuple[Setup, ...]
    wanted: int
    most: int
    distance: float = 0.0
    risky: frozenset[Setup] = frozenset()
    rows: tuple[Row, ...] = ()
    open: tuple[Observation, ...] = ()
    out: tuple[Out, ...] = ()
    lost: tuple[Setup, ...] = ()
    spoiled: int = 0
    closed: bool = False

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What a block holds now."""
        control = (Entry(self.baseline, control=True),) if self.stage == "confirm" else ()
        return (Entry(self.baseline), *control, *map(Entry, self.setups))


def start_race(rules: Rules, baseline: Setup, entrants: tuple[Setup, ...]) -> State:
    """A race before its first probe; the baseline needs no place among the entrants."""
    others = tuple(setup for setup in entrants if setup != baseline)
    blocks = rules.looks[-1]
    return State(
        stage="race",
        rules=rules,
        baseline=baseline,
        entrants=others,
        setups=others,
        wanted=blocks,
        most=blocks,
    )


def start_confirmation(
    rules: Rules,
    baseline: Setup,
    entrants: tuple[Setup, ...],
    *,
    distance: float,
    most: int,
    risky: frozenset[Setup] = frozenset(),
) -> State:
    """A confirmation before its first probe.

    Args:
        rules: Fixed beforehand.
        baseline: What the user has today.
        entrants: The candidates.
        distance: Log ratio between the expected gain and the margin.
        most: Launches that it may take.
        risky: As in `State`.
    """
    others = tuple(setup for setup in entrants if setup != baseline)
    return State(
        stage="confirm",
        rules=rules,
        baseline=baseline,
        entrants=others,
        setups=others,
        wanted=min(LEAST_LAUNCHES, most),
        most=most,
        distance=distance,
        risky=risky,
    )


def next_block(state: State) -> Block | None:
    """The block to probe in the next fresh launch; None when the stage is decided."""
    rivals = 2 if state.stage == "race" else 1
    decided = len(state.setups) < rivals or state.closed or len(state.rows) >= state.wanted
    if decided or state.spoiled >= SPOILED_IN_A_ROW:
        return None
    return Block(state.stage, len(state.rows), _order(state))


def _order(state: State) -> tuple[Entry, ...]:
    """Random, and reversed in every second block, so that a drift within launches cancels."""
    number = len(state.rows)
    whole = replace(state, setups=state.entrants).entries
    order = sorted(whole, key=lambda entry: (entry.setup.key, entry.control))
    random.Random(f"{state.rules.seed} {state.stage} {number // 2}").shuffle(order)
    if number % 2:
        order.reverse()
    return tuple(entry for entry in order if entry in state.entries)


def absorb(state: State, observation: Observation) -> State:
    """The state after one more probe.

    A block counts only when one launch served all of it: an observation of another launch
    begins the block anew. A setup that fails is out; one that lost its launch may try once
    more, since what killed the workers need not have been the setup. When the baseline fails
    the block is spoiled.
    """
    if state.open and state.open[0].launch != observation.launch:
        state = replace(state, open=())
    if observation.kind != "ok":
        return _failed(state, observation)
    return _completed(replace(state, open=(*state.open, observation)))


def resume(state: State, probes: Iterable[Probe], round: int = 0) -> State:
    """The state after the recorded probes of its blocks; a broken block begins anew.

    Blocks without a baseline stopped a session, not the run: the next session tries again.
    """
    for probe in probes:
        if probe.phase == state.stage and probe.round == round and probe.block is not None:
            state = absorb(state, observe(probe))
    return replace(state, spoiled=0)


def _failed(state: State, observation: Observation) -> State:
    setup = observation.entry.setup
    if setup == state.baseline:
        return replace(state, open=(), spoiled=state.spoiled + 1)
    if observation.kind in LOSES_LAUNCH and state.lost.count(setup) < TOLERATED:
        return replace(state, open=(), lost=(*state.lost, setup))
    reason = f"{observation.kind}: {observation.reason}"
    state = _leave(state, {setup: reason}, failed=True)
    return replace(state, open=()) if observation.kind in LOSES_LAUNCH else _completed(state)


def _leave(state: State, reasons: Mapping[Setup, str], *, failed: bool = False) -> State:
    leaving = [Out(setup, len(state.rows), reason, failed) for setup, reason in reasons.items()]
    staying = tuple(setup for setup in state.setups if setup not in reasons)
    return replace(state, setups=staying, out=(*state.out, *leaving))


def _completed(state: State) -> State:
    """Closes the block if it holds every entry, and looks if a look is due."""
    row = {item.entry: item for item in state.open if item.entry in state.entries}
    if not state.setups or len(row) < len(state.entries):
        return state
    state = replace(state, rows=(*state.rows, row), open=(), spoiled=0)
    if state.stage == "race" and len(state.rows) in state.rules.looks:
        return _look(state)
    if state.stage == "confirm" and len(state.rows) == LEAST_LAUNCHES:
        return _extend(state)
    return state


def _extend(state: State) -> State:
    """Plans the launches that resolve the distance, at the spread of the first ones.

    Blinded re-estimation of the sample size: Friede, T. and Kieser, M. (2006), Sample size
    recalculation in internal pilot study designs. Biometrical Journal 48, 537-555.
    """
    launches = launches_for(
        state.distance,
        spread_of(state),
        claim_confidence(state.rules, len(state.entrants)),
        least=LEAST_LAUNCHES,
        most=max(LEAST_LAUNCHES, state.most),
    )
    return replace(state, wanted=launches)


def claim_confidence(rules: Rules, compared: int) -> float:
    """Bonferroni: the claims on all ``compared`` candidates hold together."""
    return 1 - (1 - rules.confidence) / max(1, compared)


def against_baseline(
    state: State, setup: Setup, what: Literal["backward", "end_to_end"] = "backward"
) -> list[float]:
    """Log ratios to the baseline of each launch, shape (blocks,).

    A confirmation probes the baseline twice in a launch; their mean is the better reference.
    """
    labels = [entry for entry in state.entries if entry.setup == state.baseline]
    return [
        getattr(row[Entry(setup)], what) - fmean(getattr(row[label], what) for label in labels)
        for row in state.rows
    ]


def spread_of(state: State) -> float:
    """Standard deviation of a log ratio to the baseline: the median over the setups still in.

    The median, because one stalled probe blows up the spread of its setup.
    """
    return median(stdev(against_baseline(state, setup)) for setup in state.setups)


def backward_of(state: State, setup: Setup) -> tuple[float, ...]:
    """Log backward throughput of a setup that is still in, shape (blocks,)."""
    return tuple(row[Entry(setup)].backward for row in state.rows)


def behind(state: State, setup: Setup, leader: Setup) -> tuple[float, ...]:
    """Log ratios of ``setup`` over ``leader``, paired within launches, shape (blocks,)."""
    pairs = zip(backward_of(state, setup), backward_of(state, leader), strict=True)
    return tuple(own - best for own, best in pairs)


def leader_of(state: State) -> Setup:
    """The setup with the best mean over the blocks; it may be the baseline."""
    return max((state.baseline, *state.setups), key=lambda setup: fmean(backward_of(state, setup)))


def _look(state: State) -> State:
    """Eliminates what is slower than the leader by a paired t-test, Holm over the setups.

    The level is shared evenly by the looks.
    """
    leader = leader_of(state)
    rivals = [setup for setup in state.setups if setup != leader]
    gaps = {setup: behind(state, setup, leader) for setup in rivals}
    level = state.rules.level / len(state.rules.looks)
    p_values = [slower_p(gap) for gap in gaps.values()]
    reasons = {
        setup: f"behind {leader.key} by {-math.expm1(fmean(gaps[setup])):.1%} (p = {p:.2g})"
        for setup, p, slower in zip(rivals, p_values, holm(p_values, level), strict=True)
        if slower
    }
    state = _leave(state, reasons)
    alike = all(
        fmean(gaps[item]) > -state.rules.log_margin for item in rivals if item not in reasons
    )
    return replace(state, closed=alike)
