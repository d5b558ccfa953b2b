"""Whether a narrower gradient wire dtype can gain anything worth a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

from autotune.decide.stats import NO_SPREAD, Estimate, estimate
from autotune.readings import Exposure

CONFIDENCE = 0.95
LEAST_PAIRS = 3
# As in "exposed communication under twice the noise: keep fp32", a rule of thumb.
NOISES = 2  # half-widths of the interval that the exposed time must reach
HALVED = 0.5  # share of the exposed time that half the bytes can save, at most
STALL = 8  # standard deviations of the other pairs, which few pairs tell poorly: hence so many
DEVIATIONS = 1 / NormalDist().inv_cdf(0.75)  # of normal noise, in a median absolute deviation
NEAR_ONE = 0.05  # ratios nearer to 1 show a third decimal


@dataclass(frozen=True, slots=True)
class Exposed:
    """Gradient communication that the backward pass waits for.

    Attributes:
        backward_seconds: Median of the backward passes with communication.
        exposed_seconds: Mean difference of the pairs that did not stall; negative where the
            backward with communication happened to be faster.
        interval: Its 95 % interval, seconds.
    """

    backward_seconds: float
    exposed_seconds: float
    interval: tuple[float, float]

    @property
    def share(self) -> float:
        """Exposed part of the backward pass."""
        return self.exposed_seconds / self.backward_seconds

    @property
    def share_interval(self) -> tuple[float, float]:
        """Its 95 % interval, with the backward time taken as known."""
        low, high = self.interval
        return low / self.backward_seconds, high / self.backward_seconds

    @property
    def gain_bound(self) -> float:
        """Most that half the gradient bytes can gain in backward throughput, ratio minus 1.

        Half the bytes save at most half of the exposed time, here its upper end:
        ``1 / (1 - share / 2) - 1``. From 0 to 1.
        """
        share = min(max(self.share_interval[1], 0.0), 1.0)
        return 1 / (1 - HALVED * share) - 1


def exposed_communication(reading: Exposure) -> Exposed | None:
    """What the pairs say; None with fewer than `LEAST_PAIRS`, as where a library always reduces.

    The mean with Student's t has the narrowest interval for the noise of ordinary pairs, but
    one stalled pair moves both at will. So stalls are left out first, by the median absolute
    deviation, which a minority of the pairs cannot move. With 1 % noise the nominal 95 % cover
    .92 to .95 from 4 to 20 pairs, with and without 10 % of stalls (simulated).
    """
    pairs = list(zip(reading.synced_seconds, reading.unsynced_seconds, strict=False))
    if len(pairs) < LEAST_PAIRS:
        return None
    backward = median(reading.synced_seconds)
    assert backward > 0
    found = _steady_estimate([(synced - unsynced) / backward for synced, unsynced in pairs])
    return Exposed(backward, found.mean * backward, (found.low * backward, found.high * backward))


def _steady_estimate(shares: Sequence[float]) -> Estimate:
    """The t interval without stalls; all pairs count where too few would be left."""
    centre = median(shares)
    deviation = median(abs(share - centre) for share in shares)
    limit = NO_SPREAD + STALL * DEVIATIONS * deviation  # equal shares may differ by rounding
    steady = [share for share in shares if abs(share - centre) <= limit]
    return estimate(steady if len(steady) >= LEAST_PAIRS else shares, CONFIDENCE)


def closes(exposed: Exposed, margin: float) -> str | None:
    """Why the gradient wire dtype is not worth a search; None where it is.

    Args:
        exposed: As measured.
        margin: Gains below it are not worth a change; 0.01 is 1 %.
    """
    bound = exposed.gain_bound
    if bound < margin:
        return (
            f"gradient {_measured(exposed)}: half the bytes can gain at most {_percent(bound)},"
            f" below the margin of {100 * margin:g} %"
        )
    low, high = exposed.interval
    noise = (high - low) / 2
    if low <= 0:
        return f"gradient {_measured(exposed)}: no more than noise"
    if exposed.exposed_seconds < NOISES * noise:
        return f"gradient {_measured(exposed)}: less than twice its noise of {_milliseconds(noise)}"
    return None


def justification(exposed: Exposed) -> str:
    """Why the gradient wire dtype is worth a search, for people."""
    bound = exposed.gain_bound
    ratio = f"{1 + bound:.{2 if bound >= NEAR_ONE else 3}f}x"
    return (
        f"Gradient {_measured(exposed)}: a wire dtype of half the bytes can gain at most {ratio}."
    )


def _measured(exposed: Exposed) -> str:
    low, high = exposed.share_interval
    return (
        f"communication is exposed for {_milliseconds(exposed.exposed_seconds)} of a"
        f" {_milliseconds(exposed.backward_seconds)} backward ({_percent(exposed.share)}, 95 %"
        f" interval {_percent(low)} to {_percent(high)})"
    )


def _milliseconds(seconds: float) -> str:
    milliseconds = 1e3 * seconds
    return f"{_fixed(milliseconds, 1 if abs(milliseconds) >= 1 else 2)} ms"


def _percent(share: float) -> str:
    return f"{_fixed(100 * share, 0 if abs(share) >= 0.1 else 1)} %"


def _fixed(value: float, digits: int) -> str:
    """``value`` with so many decimals, and no sign on a zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"
