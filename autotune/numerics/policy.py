"""Which loss scale a real run should have: replays over its length, with chance and with stress."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.numerics.loss_scale import NEVER, OCCUPIED, Powers, Replay, replay_runs
from autotune.readings import LEAST_POWER, ScaleTrace
from autotune.setup import LossScale, Scaler

REPLICATES = 8
INTERVAL_REPLICATES = 200
TAILS = (2.5, 97.5)  # percentiles of a 95 % interval
TIE = 1e-4  # of the useful steps: one step in ten thousand is nothing that a run can notice
SMALLEST_FP16 = -24  # log2: half of it rounds to zero
RULE_OF_THREE = 3  # no overflow in n steps bounds its rate below 3 / n, at 95 %
# BigScience's 104B run in fp16: gradients jumped by 4.3 bits between two steps; later the scale
# fell from 2**20 to 2**15 within seven steps. (bigscience, chronicles of tr8b-104B.)
JUMP_BITS = 4
COLLAPSE_BITS = 8
RECOVERY_STEPS = 100  # for each bit of the collapse


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a loss scale must keep to.

    Attributes:
        lost_norm: Norm of the gradient elements that underflow, over the whole norm, at most.
            The gate ``underflow`` has the same limit: fp16 without any scaling loses 2e-5 on a
            small GPT.
        headroom_bits: Bits by which the first scale stays below the smallest of the largest
            finite ones, at least: warm-up gradients are not those of the whole run. Chosen here;
            single steps of BigScience's 104B run took twice as much, so scaling stays dynamic.
        skipped_share: Steps that are skipped once the scale has settled, over all, at most.
            Chosen here: between the 0.2 % of DeepSpeed's window 1000 with hysteresis 2 and the
            2 % of window 100, where gradients stay the same (``h / (W + 1 + h)``).
    """

    lost_norm: float = 1e-3
    headroom_bits: float = 2.0
    skipped_share: float = 5e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScore:
    """What the replays of one policy came to.

    Attributes:
        policy: The loss scale.
        useful_step_fraction: Steps that apply an update, of all; mean over the replays.
        interval: 95 % of the replays lie in it.
        stress_useful_step_fraction: In the stress scenario.
        lost_norm: Norm of the gradient elements that become zero at the scales used, over the
            whole norm, on average over the applied steps.
        headroom_bits: Largest power that was finite in every measured step, less the initial one.
        skipped_share: Steps that are skipped after the first applied one, of all; mean over the
            replays.
        died: Whether an overflow ended the training, in a replay or under stress (see `Replay`).
    """

    policy: LossScale
    useful_step_fraction: float
    interval: tuple[float, float]
    stress_useful_step_fraction: float
    lost_norm: float
    headroom_bits: int
    skipped_share: float
    died: bool


def block_bootstrap(
    finite_powers: Sequence[int], steps: int, seed: int, *, as_measured: bool = True
) -> Powers:
    """A run of ``steps`` steps: the trace as measured, then random blocks of it.

    Blocks keep what neighbouring steps have in common. Their length is the square root of the
    trace's, longer than the cube root that suits weak dependence (Hall, Horowitz and Jing, 1995,
    Biometrika 82, 561-574), because gradients drift. The trace is a circle: blocks may cross its
    end, so every step is equally likely (Politis and Romano, 1992, A circular block-resampling
    procedure for stationary data).

    Args:
        finite_powers: As in `ScaleTrace`, shape (measured,), at least one.
        steps: Of the run.
        seed: Of the blocks.
        as_measured: Whether the run begins with the trace; else all of it is drawn.
    """
    trace = np.asarray(finite_powers, np.int8)
    assert len(trace) > 0
    begin = trace if as_measured else trace[:0]
    length = math.ceil(math.sqrt(len(trace)))
    blocks = -(-max(0, steps - len(begin)) // length)
    starts = np.random.default_rng(seed).integers(len(trace), size=blocks)
    places = (starts[:, None] + np.arange(length)) % len(trace)
    return np.concatenate([begin, trace[places.ravel()]])[:steps]


def stressed(run: Powers) -> Powers:
    """The run with what large fp16 runs have seen: a jump, later a collapse and a recovery.

    In the second quarter gradients are 4 bits larger. At half of the run the largest finite
    scale falls by 8 bits, one a step, and comes back one bit every 100 steps. It never falls
    below the least power that is tried.
    """
    steps = len(run)
    loss = np.zeros(steps, np.int8)
    loss[steps // 4 : steps // 2] = JUMP_BITS
    fall = np.arange(1, COLLAPSE_BITS + 1, dtype=np.int8)
    rise = np.repeat(fall[::-1], RECOVERY_STEPS)
    shape = np.concatenate([fall, rise])[: steps - steps // 2]
    loss[steps // 2 : steps // 2 + len(shape)] = shape
    return np.where(run < LEAST_POWER, run, np.maximum(run - loss, LEAST_POWER))


def lost_norms(trace: ScaleTrace) -> list[float]:
    """For each power of `OCCUPIED`: norm of the elements that vanish, over the whole.

    An element vanishes where ``|g| * scale`` is at most half the smallest number of fp16, 2 ** -25:
    the tie rounds to the even neighbour, which is 0.
    """
    bins = np.arange(len(trace.squares)) + trace.lowest_bin
    squares = np.array(trace.squares)
    total = float(squares.sum())
    lost = []
    for power in OCCUPIED:
        # A bin holds [2 ** bin, 2 ** (bin + 1)): all of it is below half the smallest number.
        gone = float(squares[bins + power + 1 <= SMALLEST_FP16 - 1].sum())
        lost.append(math.sqrt(gone / total) if total > 0 else 0.0)
    return lost


def evaluate(
    scaler: Scaler,
    policies: Sequence[LossScale],
    trace: ScaleTrace,
    steps: int,
    *,
    seed: int = 0,
    replicates: int = REPLICATES,
) -> list[PolicyScore]:
    """Replays every policy over a run of ``steps`` steps, several times and once under stress."""
    if not policies:
        return []
    runs = [block_bootstrap(trace.finite_powers, steps, seed + item) for item in range(replicates)]
    *replays, stress = replay_runs(scaler, policies, np.stack([*runs, stressed(runs[0])]))
    useful = np.array([item.applied for item in replays]) / steps
    low, high = np.percentile(useful, TAILS, axis=0)
    late = np.mean([item.skipped - item.startup for item in replays], axis=0) / steps
    lost = _mean_lost(replays, lost_norms(trace))
    died = np.any([item.died_at != NEVER for item in (*replays, stress)], axis=0).tolist()
    finite = min(trace.finite_powers)
    return [
        PolicyScore(
            policy=policy,
            useful_step_fraction=float(useful[:, place].mean()),
            interval=(float(low[place]), float(high[place])),
            stress_useful_step_fraction=float(stress.applied[place] / steps),
            lost_norm=float(lost[place]),
            headroom_bits=finite - policy.initial_power,
            skipped_share=float(late[place]),
            died=died[place],
        )
        for place, policy in enumerate(policies)
    ]


def _mean_lost(replays: Sequence[Replay], lost: Sequence[float]) -> np.ndarray:
    """Average of the lost norm over the applied steps, shape (policies,)."""
    spent = sum(item.occupancy for item in replays)
    assert not isinstance(spent, int)
    means: np.ndarray = (spent @ np.array(lost)) / np.maximum(spent.sum(axis=1), 1)
    return means


def excesses(score: PolicyScore, limits: Limits) -> dict[str, float]:
    """By how much a policy breaks each limit; at most 0 where it keeps to it."""
    return {
        "lost_norm": score.lost_norm - limits.lost_norm,
        "headroom_bits": limits.headroom_bits - score.headroom_bits,
        "skipped_share": score.skipped_share - limits.skipped_share,
        "survives": 1.0 if score.died else 0.0,
    }


def infeasible(score: PolicyScore, limits: Limits) -> str | None:
    """Why a policy must not be chosen; None where it may be."""
    broken = [name for name, excess in excesses(score, limits).items() if excess > 0]
    if "headroom_bits" in broken:
        return (
            f"it starts {_start(score.headroom_bits)} the largest finite scale, not "
            f"{limits.headroom_bits:g} bits below it"
        )
    if "lost_norm" in broken:
        return (
            f"gradients of {100 * score.lost_norm:.3g} % of the norm vanish, over "
            f"{100 * limits.lost_norm:g} %"
        )
    if "survives" in broken:
        return _death(score.policy)
    if "skipped_share" in broken:
        return (
            f"it skips {100 * score.skipped_share:.3g} % of the steps, over "
            f"{100 * limits.skipped_share:g} %"
        )
    return None


def _start(headroom_bits: int) -> str:
    """Where the first scale is, in front of what it is compared with."""
    if headroom_bits == 0:
        return "at"
    bits = "1 bit" if abs(headroom_bits) == 1 else f"{abs(headroom_bits)} bits"
    return f"{bits} {'below' if headroom_bits > 0 else 'above'}"


def _death(policy: LossScale) -> str:
    if policy.minimum:
        return f"the library gives up at its floor of {policy.minimum}"
    return "its scale falls to 0, and the weights become NaN"


def choose(scores: Sequence[PolicyScore], usual: LossScale, limits: Limits) -> PolicyScore | None:
    """The policy with the most useful steps that keeps to the limits; None where none does.

    What is within `TIE` of the best is as good. Of these the one nearest to the framework's
    own is chosen: fewest other fields, then the nearest first scale, then the longest window.
    """
    sound = [score for score in scores if infeasible(score, limits) is None]
    best = max((score.useful_step_fraction for score in sound), default=0.0)
    near = [score for score in sound if score.useful_step_fraction >= best - TIE]
    return min(near, key=lambda score: _distance(score.policy, usual), default=None)


def _distance(policy: LossScale, usual: LossScale) -> tuple[int, int, int]:
    fields = ("initial_power", "window", "hysteresis", "minimum")
    changes = sum(getattr(policy, name) != getattr(usual, name) for name in fields)
    return changes, abs(policy.initial_power - usual.initial_power), -policy.window


def explain(
    scores: Sequence[PolicyScore],
    chosen: PolicyScore | None,
    usual: PolicyScore,
    limits: Limits,
    steps: int,
) -> str:
    """Why this loss scale and not the framework's own, in a sentence or two."""
    if not scores:
        return "no loss scale of the space starts at or above its own floor."
    if chosen is None:
        best = max(scores, key=lambda score: (score.headroom_bits >= 0, -score.lost_norm))
        return (
            f"none of {len(scores)} loss scales trains: even {describe(best.policy)} fails, "
            f"because {infeasible(best, limits)}."
        )
    text = (
        f"Of {len(scores)} loss scales replayed over {steps:,} steps, {describe(chosen.policy)} "
        f"keeps {100 * chosen.useful_step_fraction:.2f} % of the steps useful"
    )
    if chosen.policy == usual.policy:
        return text + ": the framework's own."
    return text + (
        f"; the framework's own {describe(usual.policy)} keeps "
        f"{100 * usual.useful_step_fraction:.2f} %{_trouble(usual, limits)}."
    )


def _trouble(score: PolicyScore, limits: Limits) -> str:
    reason = infeasible(score, limits)
    return "" if reason is None else f", but {reason}"


def describe(policy: LossScale) -> str:
    """A policy in words."""
    return " ".join(_parts(policy))


def _parts(policy: LossScale) -> Iterator[str]:
    yield f"2^{policy.initial_power} with window {policy.window:,}"
    if policy.minimum:
        yield f"and hysteresis {policy.hysteresis}"
    if policy.minimum > 1:
        yield f"and floor {policy.minimum}"


@dataclass(frozen=True, slots=True)
class Interval:
    """Skipped steps that a real run should show: 95 % interval, and the mean."""

    low: float
    mean: float
    high: float


def expected_skips(
    scaler: Scaler,
    policy: LossScale,
    trace: ScaleTrace,
    *,
    steps: int,
    probes: int = 1,
    seed: int = 0,
    replicates: int = INTERVAL_REPLICATES,
) -> Interval:
    """Skipped steps of ``probes`` runs from the start, ``steps`` steps each, taken together.

    The interval holds 95 % of the replays of drawn runs, and that of the trace as measured. Its
    upper end also holds what the trace cannot exclude: an event that did not happen in n steps
    may happen in up to 3 / n of all steps (rule of three, 95 %), each a skipped step.
    """
    assert replicates > 0
    runs = [
        block_bootstrap(trace.finite_powers, steps, seed + item, as_measured=item == 0)
        for item in range(1 + replicates)
    ]
    skips = [float(found.skipped[0]) for found in replay_runs(scaler, [policy], np.stack(runs))]
    low, high = np.percentile(skips[1:], TAILS)
    unseen = RULE_OF_THREE / len(trace.finite_powers) * steps
    # Runs of one sweep train on the same batches, so their chance does not average out.
    return Interval(
        low=probes * min(float(low), skips[0]),
        mean=probes * float(np.mean(skips[1:])),
        high=min(probes * (max(float(high), skips[0]) + unseen), float(probes * steps)),
    )
