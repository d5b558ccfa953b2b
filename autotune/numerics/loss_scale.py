"""Replays dynamic loss scaling on measured overflows, with the rules of DeepSpeed and torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.readings import LEAST_POWER, MOST_POWER
from autotune.setup import LossScale, Scaler

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Powers = NDArray[np.int8]  # small, because real runs are long
# Scales at which applied steps are counted: those that a trace knows, one for all above, and
# below them what torch, which has no floor, may fall to; 2 ** -48 stands for all below.
OCCUPIED = range(LEAST_POWER - 48, MOST_POWER + 2)
NEVER = -1
MOST_ENTRIES = 2**26  # of the table of overflows, 4 bytes each
SMALLEST_FP32 = 2.0**-149  # torch keeps the scale in fp32: half of it is 0


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of each policy; arrays have the shape (policies,) unless said otherwise.

    Attributes:
        skipped: Steps that were skipped for overflow.
        startup: Those of them before the first applied step.
        applied: Steps that were applied. After a death there are no further steps.
        died_at: Step whose overflow ended the training: DeepSpeed gives up at the floor; torch's
            scale becomes 0, and the next finite gradient is divided by it, which makes every
            weight NaN. `NEVER` if there was none.
        scale: The scale after the last step.
        occupancy: Applied steps at each power of two, shape (policies, powers of `OCCUPIED`); a
            scale in between counts as the next power up.
    """

    skipped: Ints
    startup: Ints
    applied: Ints
    died_at: Ints
    scale: Floats
    occupancy: Ints


def replay(
    scaler: Scaler,
    policies: Sequence[LossScale],
    finite_powers: Sequence[int] | Powers,
    *,
    consecutive_hysteresis: bool = False,
) -> Replay:
    """Trains every policy through the same overflows.

    A step overflows when its scale is above ``2 ** finite_powers[step]``, and at any scale where
    that is below `LEAST_POWER`: scales below the least that was tried count as that one.
    Nothing happens to a scale between two overflows and growths, so each policy jumps from one
    such event to its next.

    The rules are those of ``DynamicLossScaler.update_scale`` (it raises when it overflows at the
    floor) and ``FP16_UnfusedOptimizer._update_scale`` in DeepSpeed 0.19.8, and of
    ``torch._amp_update_scale_`` in torch 2.13.

    Args:
        scaler: Whose rules apply.
        policies: What to replay.
        finite_powers: Of each step, as in `ScaleTrace`, shape (steps,).
        consecutive_hysteresis: DeepSpeed's option to refill the hysteresis at every clean step.
    """
    run = np.asarray(finite_powers, np.int8)[None, :]
    return _replayed(_Run(scaler, policies, run, consecutive_hysteresis))[0]


def replay_runs(scaler: Scaler, policies: Sequence[LossScale], runs: Powers) -> list[Replay]:
    """Trains every policy through several runs of the same length, as `replay` through one.

    Runs are taken together as far as memory allows: a step of many costs little more than of one.

    Args:
        scaler: Whose rules apply.
        policies: What to replay.
        runs: Finite powers of each run, shape (runs, steps).
    """
    rows = max(1, len(np.unique(runs)) * runs.shape[1])
    together = max(1, MOST_ENTRIES // rows)
    return [
        found
        for begin in range(0, len(runs), together)
        for found in _replayed(_Run(scaler, policies, runs[begin : begin + together]))
    ]


def _replayed(run: _Run) -> list[Replay]:
    while run.going.size:
        run.advance()
    columns = (run.skipped, run.startup, run.applied, run.died_at, run.scale, run.occupancy)
    shape = (run.runs, run.policies)
    return [
        Replay(*found)
        for found in zip(*(item.reshape(*shape, *item.shape[1:]) for item in columns), strict=True)
    ]


def ceil_log2(scale: Floats) -> Ints:
    """The least power of two that is not below each scale."""
    mantissa, exponent = np.frexp(scale)
    found: Ints = np.where(mantissa == 0.5, exponent - 1, exponent).astype(np.int64)
    return found


class Overflows:
    """For each run and each power of two, the next step that overflows at it."""

    def __init__(self, finite_powers: Powers) -> None:
        runs, self._steps = finite_powers.shape
        # Powers between two neighbouring levels overflow in the same steps and share a row.
        # Up to the least level nothing overflows; above the largest everything does.
        self._levels = np.unique(finite_powers).astype(np.int64)
        self._next = np.empty((max(0, len(self._levels) - 1), runs, self._steps + 1), np.int32)
        for row, level in enumerate(self._levels[1:]):
            self._next[row] = _next(finite_powers < level)
        self._finite = _next(finite_powers >= LEAST_POWER)

    def after(self, power: Ints, run: Ints, step: Ints) -> Ints:
        """The first step not before ``step`` that overflows; the number of steps if none does."""
        # What overflows at the least power that was tried may do so below it too.
        row = np.searchsorted(self._levels, np.maximum(power, LEAST_POWER))
        found = np.where(row > 0, step, self._steps)
        between = (row > 0) & (row < len(self._levels))
        found[between] = self._next[row[between] - 1, run[between], step[between]]
        return found

    def finite_after(self, run: Ints, step: Ints) -> Ints:
        """The first step not before ``step`` that some power saves; else the number of steps."""
        return self._finite[run, step].astype(np.int64)


def _next(happens: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The first step not before each one where it happens, shape (runs, steps + 1)."""
    runs, steps = happens.shape
    found = np.full((runs, steps + 1), steps, np.int32)
    np.copyto(found[:, :-1], np.arange(steps, dtype=np.int32), where=happens)
    backwards = found[:, ::-1]
    np.minimum.accumulate(backwards, axis=1, out=backwards)
    return found


class _Run:
    """Every policy on its way through every run. ``going`` are the indices of the unfinished."""

    def __init__(
        self,
        scaler: Scaler,
        policies: Sequence[LossScale],
        finite: Powers,
        consecutive: bool = False,
    ) -> None:
        self.policies, (self.runs, self.steps) = len(policies), finite.shape

        def each(values: Sequence[float]) -> Floats:
            return np.tile(np.array(values, np.float64), self.runs)

        number = self.runs * self.policies
        self.run = np.repeat(np.arange(self.runs), self.policies)
        self.scaler = scaler
        self.consecutive = consecutive
        self.overflows = Overflows(finite)
        self.scale = each([2.0**item.initial_power for item in policies])
        # torch's has no floor, whatever the policy says, as stage 0 has no hysteresis.
        floored = scaler != "grad-scaler"
        self.minimum = each([item.minimum * floored for item in policies])
        self.window = each([item.window for item in policies]).astype(np.int64)
        self.shift = each([item.hysteresis for item in policies]).astype(np.int64)
        self.left = self.shift.copy()  # overflows until the scale falls
        self.step = np.zeros(number, np.int64)
        # The step after which clean steps are counted: the last overflow, in torch also growth.
        self.since = np.full(number, -1, np.int64)
        self.skipped = np.zeros(number, np.int64)
        self.startup = np.zeros(number, np.int64)
        self.applied = np.zeros(number, np.int64)
        self.died_at = np.full(number, NEVER, np.int64)
        self.occupancy = np.zeros((number, len(OCCUPIED)), np.int64)
        self.going = np.arange(number if self.steps else 0)

    def advance(self) -> None:
        """Takes every unfinished policy to its next event, and past it."""
        going = self.going
        now, scale = self.step[going], self.scale[going]
        power = ceil_log2(scale)
        overflow = self.overflows.after(power, self.run[going], now)
        growth = self._growth(going, now)
        event = np.minimum(np.minimum(overflow, growth), self.steps)
        grows = (growth < overflow) & (growth < self.steps)
        clean = event - now + grows
        self.applied[going] += clean
        place = np.clip(power - OCCUPIED[0], 0, len(OCCUPIED) - 1)
        self.occupancy[going, place] += clean
        fails = (overflow <= growth) & (overflow < self.steps)
        if self.consecutive:
            self.left[going[clean > 0]] = self.shift[going[clean > 0]]
        self.step[going] = event + 1
        self._grow(going[grows], event[grows])
        self._overflow(going[fails], event[fails])
        self.going = going[(self.step[going] < self.steps) & (self.died_at[going] == NEVER)]

    def _growth(self, going: Ints, now: Ints) -> Ints:
        """The step at whose end each scale doubles if nothing overflows before."""
        since, window = self.since[going], self.window[going]
        if self.scaler == "grad-scaler":
            return since + window
        periods = np.maximum(1, -(-(now - since - 1) // window))
        found: Ints = since + 1 + periods * window
        return found

    def _grow(self, who: Ints, step: Ints) -> None:
        self.left[who] = self.shift[who]
        if self.scaler == "grad-scaler":
            self.since[who] = step
        self.scale[who] *= 2

    def _overflow(self, who: Ints, step: Ints) -> None:
        self.since[who] = step
        self._skip(who, 1)
        if self.scaler == "deepspeed":
            waits = self.left[who] > 1
            self.left[who[waits]] -= 1
            who, step = who[~waits], step[~waits]
            dies = self.scale[who] == self.minimum[who]
            self.died_at[who[dies]] = step[dies]
            who = who[~dies]
        self.scale[who] = np.maximum(self.scale[who] / 2, self.minimum[who])
        if self.scaler == "grad-scaler":
            dies = self.scale[who] < SMALLEST_FP32
            self.scale[who[dies]] = 0.0
            self.died_at[who[dies]] = step[dies]
        if self.scaler == "deepspeed-stage-0":
            self._sit(who[self.scale[who] == self.minimum[who]])

    def _sit(self, who: Ints) -> None:
        """Nothing changes at the floor of stage 0 until a step is finite: no need to walk there."""
        found = self.overflows.finite_after(self.run[who], self.step[who])
        self._skip(who, found - self.step[who])
        self.since[who] = found - 1
        self.step[who] = found

    def _skip(self, who: Ints, steps: Ints | int) -> None:
        self.skipped[who] += steps
        self.startup[who] += np.where(self.applied[who] == 0, steps, 0)
