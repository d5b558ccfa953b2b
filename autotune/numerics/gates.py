"""Gates: what a setup's gradient and its first steps must be like, or it is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from autotune.numerics.thresholds import (
    LARGEST_FP16,
    SIGMAS,
    SMALLEST_FP16,
    THRESHOLDS,
    WARNED_FRACTION,
    Bound,
    GateName,
    Thresholds,
    show_number,
)
from autotune.readings import GradientReading, Siblings
from autotune.setup import Setup

Status = Literal["pass", "warn", "fail"]
LEAST_LOSSES = 4  # of which a mean is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """How a setup did at one gate.

    Attributes:
        gate: The gate.
        status: ``fail`` refuses the setup, ``warn`` does not.
        value: What is compared with ``limit``, in the same unit; None where it is no finite
            number.
        limit: Beyond it the setup fails, at `skipped-steps` it is warned of; None where the gate
            has none.
        text: One sentence for people: the value, the limit, and the tensor, module or setup
            that it is about.
        source: Where the limit comes from.
        changed: Whether the limit is the user's, not the default.
    """

    gate: GateName
    status: Status
    value: float | None
    limit: float | None
    text: str
    source: str
    changed: bool

    @property
    def reason(self) -> str:
        """What the gate says, after its name."""
        return f"{self.gate}: {self.text}"


def judge(setup: Setup, reading: GradientReading, thresholds: Thresholds) -> tuple[GateResult, ...]:
    """Results of the gates that apply to the setup, causes before symptoms.

    What overflows in the forward pass spoils everything after it; then come skipped steps, whose
    gradients are never applied; then the gradient's length, its direction and its parts; then
    what the optimizer makes of it. ``underflow`` goes before ``gain`` where it explains it.
    """
    scale = [_gain, _underflow]
    if _vanishing_explains_gain(reading, thresholds.bound("gain", setup)):
        scale.reverse()
    gates: tuple[Gate, ...] = (
        *(_finite_forward, _activation_headroom, _skipped_steps, *scale),
        *(_relative_error, _cosine, _worst_tensor, _same_gradient, _weights_move, _loss_band),
    )
    results = (gate(setup, reading, thresholds) for gate in gates)
    return tuple(result for result in results if result is not None)


def refusal(results: Iterable[GateResult]) -> GateResult | None:
    """The failed gate that tells why the setup is refused: the first, as `judge` orders them."""
    return next((result for result in results if result.status == "fail"), None)


Gate = Callable[[Setup, GradientReading, Thresholds], GateResult | None]


def _vanishing_explains_gain(reading: GradientReading, gain: Bound) -> bool:
    """Whether what vanished is at least half of what the gain is off by.

    A gradient equal to r but for zeros of norm ``u |r|`` has ``<g, r> / <r, r> = 1 - u ** 2``;
    small elements that are rounded up instead make it larger again.
    """
    return abs(1 - reading.gain) <= max(gain.limit, 2 * reading.underflow_norm**2)


def at_most(value: float, bound: Bound) -> Status:
    """Status of a value that should be small. What is no finite number fails."""
    if not (math.isfinite(value) and value <= bound.limit):
        return "fail"
    return "pass" if value <= bound.warn else "warn"


def at_least(value: float, bound: Bound) -> Status:
    """Status of a value that should be large. What is no finite number fails."""
    return "pass" if math.isfinite(value) and value >= bound.limit else "fail"


def result(
    gate: GateName, status: Status, value: float, limit: float, text: str, *, changed: bool = False
) -> GateResult:
    """What a gate says; numbers that are not finite are left out."""
    return GateResult(
        gate=gate,
        status=status,
        value=value if math.isfinite(value) else None,
        limit=limit if math.isfinite(limit) else None,
        text=text,
        source=THRESHOLDS[gate].source,
        changed=changed,
    )


def compared(gate: GateName, value: float, bound: Bound, subject: str) -> GateResult:
    """The result of a gate whose value should be small: ``subject`` says what it is."""
    status = at_most(value, bound)
    unit = THRESHOLDS[gate].unit
    limit = show_number(bound.limit, unit)
    ending = {"pass": f"at most {limit}", "fail": f"over {limit}"}
    ending["warn"] = f"over {show_number(bound.warn, unit)}; refused over {limit}"
    text = f"{subject} {show_number(value, unit)}, {ending[status]}"
    return result(gate, status, value, bound.limit, text, changed=bound.changed)


def _finite_forward(setup: Setup, reading: GradientReading, thresholds: Thresholds) -> GateResult:
    """Loss scaling multiplies the loss and cannot mend a forward pass that overflows."""
    largest, module = reading.activation_absmax, reading.activation_module
    status: Status = "fail"
    if not math.isfinite(largest):
        text = f"an output of {module} is not finite, even in fp32"
    elif not reading.loss_finite:
        text = (
            "the loss is not finite, and no loss scale can mend that; the largest activation "
            f"in fp32 is {largest:.3g}, in {module}"
        )
        if setup.precision == "fp16" and largest > LARGEST_FP16:
            text += f", over {LARGEST_FP16:g}, the largest number of fp16"
    else:
        status, text = "pass", "the loss and all activations are finite"
    return result("finite-forward", status, math.nan, math.nan, text)


def _activation_headroom(
    setup: Setup, reading: GradientReading, thresholds: Thresholds
) -> GateResult | None:
    """Activations grow while a model trains, and only fp16 has no room for that."""
    if setup.precision != "fp16":
        return None
    gate: GateName = "activation-headroom"
    bound = thresholds.bound(gate, setup)
    largest = reading.activation_absmax
    bits = math.nan
    if math.isfinite(largest):
        bits = math.log2(LARGEST_FP16 / max(largest, SMALLEST_FP16))
    status = at_least(bits, bound)
    shown = "not finite" if math.isnan(bits) else f"{largest:.3g}"
    text = (
        f"the largest activation is {shown}, in {reading.activation_module}: "
        f"{show_number(bits, 'bits')} below the largest number of fp16, "
        f"{'at least' if status == 'pass' else 'under'} {show_number(bound.limit, 'bits')}"
    )
    return result(gate, status, bits, bound.limit, text, changed=bound.changed)


def _skipped_steps(
    setup: Setup, reading: GradientReading, thresholds: Thresholds
) -> GateResult | None:
    """Only bf16 and fp16 are checked for overflow; fp32 and TF32 never skip."""
    if setup.precision not in ("bf16", "fp16"):
        return None
    skipped, steps = reading.skipped_steps, reading.applied_steps + reading.skipped_steps
    explained = explained_skips(setup, steps)
    status: Status = "pass" if skipped <= explained else "warn"
    text = f"{skipped} of {steps} steps skipped for overflow; "
    text += f"the loss scaler explains up to {explained}" if explained else "none should be"
    if reading.applied_steps == 0:
        status, text = "fail", f"all {steps} steps skipped for overflow: the model never trains"
    return result("skipped-steps", status, skipped, explained, text)


def explained_skips(setup: Setup, steps: int) -> int:
    """Steps that a sound setup may skip while its loss scale settles.

    The scale halves at most ``initial_power`` times before it is 1, the first time after
    ``hysteresis - 1`` further overflows; every growth, after ``window`` clean steps, may cost
    ``hysteresis`` overflows. (DeepSpeed 0.19.8, ``DynamicLossScaler``; ``torch.amp.GradScaler``
    with a hysteresis of 1.)
    """
    scale = setup.loss_scale
    if scale is None:
        return 0
    start = scale.initial_power + scale.hysteresis - 1
    return start + scale.hysteresis * (steps // max(scale.window, 1))


def _underflow(setup: Setup, reading: GradientReading, thresholds: Thresholds) -> GateResult:
    """Counts are not weighted: many small elements may be lost without harm."""
    bound = thresholds.bound("underflow", setup)
    norm, fraction = reading.underflow_norm, reading.underflow_fraction
    if math.isfinite(fraction):
        share = show_number(fraction, "share")
        subject = f"{share} of the gradient's elements became zero; their part of its norm is"
    else:
        norm, subject = math.nan, "the share of gradient elements that became zero is"
    found = compared("underflow", norm, bound, subject)
    if found.status == "fail" or fraction <= WARNED_FRACTION:
        return found
    text = f"{found.text}; but over {show_number(WARNED_FRACTION, 'share')} of the elements"
    return result("underflow", "warn", norm, bound.limit, text, changed=bound.changed)


def _gain(setup: Setup, reading: GradientReading, thresholds: Thresholds) -> GateResult:
    """Catches what is scaled wrongly, averaged twice, or missing from the sum."""
    bound = thresholds.bound("gain", setup)
    norm = reading.reference_norm
    if not (math.isfinite(norm) and norm > 0):
        found = "vanishes" if norm == 0 else "is not finite"
        text = f"the gradient {found} in fp32 itself, so there is nothing to compare with"
        return result("gain", "fail", math.nan, bound.limit, text, changed=bound.changed)
    value = abs(reading.gain - 1)
    status = at_most(value, bound)
    verb = "within" if status == "pass" else "not within"
    text = (
        f"the applied gradient is {_times(reading.gain)} that of fp32, "
        f"{verb} 1 +- {show_number(bound.limit, 'ratio')}"
    )
    return result("gain", status, value, bound.limit, text, changed=bound.changed)


def _times(gain: float) -> str:
    return f"{gain:.4g} times" if math.isfinite(gain) else "no finite multiple of"


def _relative_error(setup: Setup, reading: GradientReading, thresholds: Thresholds) -> GateResult:
    """Its limit follows the coarsest dtype that the gradient passes through."""
    bound = thresholds.bound("relative-error", setup)
    subject = "the gradient's relative error against fp32 is"
    return compared("relative-error", reading.relative_error, bound, subject)


def _cosine(setup: Setup, reading: GradientReading, thresholds: Thresholds) -> GateResult:
    """Blind to scale, unlike the gain. Rounding may put a cosine a little over 1."""
    bound = thresholds.bound("cosine", setup)
    subject = "1 minus the cosine between the gradient and that of fp32 is"
    return compared("cosine", abs(1 - reading.cosine), bound, subject)


def _worst_tensor(setup: Setup, reading: GradientReading, thresholds: Thresholds) -> GateResult:
    """One bad layer drowns in the norm of the whole."""
    bound = thresholds.bound("worst-tensor", setup)
    subject = f"the worst tensor is {reading.worst_tensor}: the relative error of its gradient is"
    return compared("worst-tensor", reading.worst_tensor_error, bound, subject)


def _same_gradient(
    setup: Setup, reading: GradientReading, thresholds: Thresholds
) -> GateResult | None:
    """fp32 is the judge: a setup that agrees with it is not refused for its sibling."""
    sibling = reading.sibling
    if sibling is None:
        return None
    gain, error = (thresholds.bound(gate, setup) for gate in ("gain", "relative-error"))
    status, value, bound, words = _against(sibling, gain, error)
    if status == "fail" and _agrees_with_fp32(setup, reading, thresholds):
        status = "warn"
        words += "; this setup agrees with fp32"
    text = f"against {sibling.key}, which differs in sharding alone, {words}"
    changed = gain.changed or error.changed
    return result("same-gradient", status, value, bound.limit, text, changed=changed)


def _against(sibling: Siblings, gain: Bound, error: Bound) -> tuple[Status, float, Bound, str]:
    """Status, value, bound and words of the comparison that turned out worse."""
    distance = abs(sibling.gain - 1)
    status = at_most(distance, gain)
    if status != "pass":
        words = f"the gain is {sibling.gain:.4g}, not within 1 +- {gain.limit:.3g}"
        return status, distance, gain, words
    found = compared("relative-error", sibling.relative_error, error, "the relative error is")
    return found.status, sibling.relative_error, error, found.text


def _agrees_with_fp32(setup: Setup, reading: GradientReading, thresholds: Thresholds) -> bool:
    judged = (gate(setup, reading, thresholds) for gate in (_gain, _relative_error))
    return all(result.status == "pass" for result in judged)


def _weights_move(setup: Setup, reading: GradientReading, thresholds: Thresholds) -> GateResult:
    """Weights without an fp32 master lose small updates to rounding."""
    bound = thresholds.bound("weights-move", setup)
    if reading.applied_steps == 0:
        text = "no step of the training run was applied"
        return result("weights-move", "fail", 0.0, bound.limit, text, changed=bound.changed)
    moved = reading.moved_fraction
    status = at_least(moved, bound)
    limit = show_number(bound.limit, "share")
    text = f"an applied step changes {show_number(moved, 'share')} of the weights"
    text += f", at least {limit}" if status == "pass" else f", under {limit}: rounding loses it"
    return result("weights-move", status, moved, bound.limit, text, changed=bound.changed)


def _loss_band(setup: Setup, reading: GradientReading, thresholds: Thresholds) -> GateResult:
    """fp32 runs in other orders tell how much the loss depends on chance."""
    floor = thresholds.bound("loss-band", setup)
    broken = _broken_loss(reading)
    if broken:
        return result("loss-band", "fail", math.nan, floor.limit, broken, changed=floor.changed)
    found, expected = _late_losses(reading)
    # Where the loss itself is zero, the numbers are differences and no shares.
    whole = abs(expected) or 1.0
    ends = [_end(run) for run in (reading.reference_losses, *reading.permuted_losses)]
    spread = stdev(ends) if len(ends) > 1 else 0.0
    limit = max(SIGMAS * spread / whole, floor.limit)
    subject = f"the loss ends at {found:.4g}, fp32's at {expected:.4g}: the difference is"
    value = abs(found - expected) / whole
    return compared("loss-band", value, Bound(limit, limit, floor.changed), subject)


def _broken_loss(reading: GradientReading) -> str:
    """Why losses cannot be compared; empty where they can."""
    if not all(_sound(run) for run in (reading.reference_losses, *reading.permuted_losses)):
        return "the loss of the fp32 runs themselves is not finite: lower the learning rate"
    if not _sound(reading.losses):
        return "the loss of the training run is not finite"
    return ""


def _sound(losses: Sequence[float]) -> bool:
    return bool(losses) and all(math.isfinite(loss) for loss in losses)


def last_losses(losses: Sequence[float]) -> tuple[float, int]:
    """Mean loss at the end of a run, and over how many steps it is taken."""
    return _end(losses), _last(losses)


def _late_losses(reading: GradientReading) -> tuple[float, float]:
    """Mean loss at the end of the run, and that of fp32 after as many applied steps.

    Skips happen while the loss scale settles: a run that skipped its first steps is as far as
    fp32 was so many steps earlier, and should not be blamed for the rest.
    """
    reference, last = reading.reference_losses, _last(reading.losses)
    stop = max(len(reference) - reading.skipped_steps, last)
    return _end(reading.losses), fmean(reference[max(stop - last, 0) : stop])


def _last(losses: Sequence[float]) -> int:
    return max(LEAST_LOSSES, len(losses) // 4)


def _end(losses: Sequence[float]) -> float:
    """Mean over the last quarter, of at least `LEAST_LOSSES` steps."""
    return fmean(losses[-_last(losses) :])
