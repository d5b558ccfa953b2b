"""The numerics of a verdict, in sentences for somebody who trains models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from autotune.numerics.findings import Communication, Finding, ScaleChoice
from autotune.numerics.gates import GateResult
from autotune.numerics.names import communication_name, reducer_of, scale_name
from autotune.numerics.policy import describe
from autotune.numerics.reduction import sentence
from autotune.readings import GradientReading
from autotune.report.evidence import Evidence
from autotune.report.phases import numerics_cost
from autotune.report.rows import useful_steps
from autotune.report.skips import Skips
from autotune.report.wires import graded, own, predicted, unseen
from autotune.setup import Precision, Setup

MOST = 5  # sentences on refused setups
COMPUTE: Mapping[Precision, str] = {
    "fp32": "fp32",
    "tf32": "TF32 products over fp32 weights",
    "bf16": "bf16 over fp32 master weights",
    "fp16": "fp16 over fp32 master weights",
}
SMALLEST = 1e-5  # share that is shown


def words(found: Evidence, skips: Sequence[Skips]) -> list[str]:
    """What there is to say: of the winner first, then of the others, then of the conditions."""
    return [
        *_winner(found),
        *_communication(found),
        *_wire_at_scale(found),
        *_loss_scale(found, skips),
        *_refused(found),
        *_conditions(found),
        *_cost(found),
    ]


def _winner(found: Evidence) -> Iterator[str]:
    """What it computes in, and how it did at the gates."""
    setup = found.winner
    if setup is None:
        return
    yield _compute(setup)
    reading, missing = found.gates.reading(setup), found.gates.missing(setup)
    if reading is not None:
        if _narrow(setup):
            yield from _gradient(found, setup, reading)
        yield _passed(found.gates.results(setup))
        if _narrow(setup):
            yield from _loss(found, setup, reading)
    elif found.gates.training(setup) is not None:
        yield _passed(found.gates.results(setup))
        yield from (f"{item.text[0].upper()}{item.text[1:]}." for item in _trained(found, setup))
    elif missing is not None:
        yield f"It could not be examined at the gates ({missing})."
    elif setup != found.baseline:
        yield "It was not examined at the gates: whether it trains is not known."


def _trained(found: Evidence, setup: Setup) -> Iterator[GateResult]:
    """What the script's own losses and gradients say."""
    own = ("gradient-norm", "loss-band")
    return (item for item in found.gates.results(setup) if _narrow(setup) and item.gate in own)


def _compute(setup: Setup) -> str:
    scale = setup.loss_scale
    scaled = "" if scale is None else f"; the loss scale starts at {describe(scale)}"
    return (
        f"Compute in {COMPUTE[setup.precision]}; gradients travel as {setup.grad_comm_dtype}"
        f"{scaled}."
    )


def _narrow(setup: Setup) -> bool:
    """Whether it rounds more than fp32 does, so that there is something to explain."""
    return setup.precision != "fp32" or setup.grad_comm_dtype != "fp32"


def _gradient(found: Evidence, setup: Setup, reading: GradientReading) -> Iterator[str]:
    """Where it is no finite number, the failed gate tells."""
    limit = found.gates.thresholds.bound("relative-error", setup).limit
    if all(map(math.isfinite, (reading.gain, reading.relative_error, reading.worst_tensor_error))):
        yield (
            f"Its gradient is {reading.gain:.5g} times that of fp32 along its direction and "
            f"differs from it by {share(reading.relative_error)} of its norm (limit "
            f"{share(limit)}); the worst tensor, {reading.worst_tensor}, by "
            f"{share(reading.worst_tensor_error)}."
        )


def _passed(results: Sequence[GateResult]) -> str:
    failed, warned = (
        "; ".join(item.reason for item in results if item.status == status)
        for status in ("fail", "warn")
    )
    warning = f", with a warning of {warned}" if warned else ""
    if not failed:
        return f"It passes all {len(results)} gates{warning}."
    passed = sum(item.status != "fail" for item in results)
    return f"It passes {passed} of {len(results)} gates{warning}. It fails {failed}."


def _loss(found: Evidence, setup: Setup, reading: GradientReading) -> Iterator[str]:
    """After the short training run, against what fp32 itself varies by."""
    floor = found.gates.thresholds.bound("loss-band", setup).limit
    for item in found.gates.results(setup):
        if item.gate == "loss-band" and item.value is not None and item.limit is not None:
            runs = 1 + len(reading.permuted_losses)
            spread = f"3 sigma of {runs} fp32 runs with the batches in different orders"
            band = spread if item.limit > floor else f"over {spread}"
            yield f"After {len(reading.losses)} training steps {item.text} ({band})."


def _communication(found: Evidence) -> Iterator[str]:
    """Whether a narrower wire dtype was worth a search."""
    setup = found.winner
    item = None if setup is None else found.findings.get(communication_name(setup))
    if setup is not None and isinstance(item, Communication):
        text = f"With {reducer_of(setup)}, {item.text[:1].lower()}{item.text[1:]}"
        yield f"{text} Narrower wire dtypes were left out of the search." if item.closed else text


def _wire_at_scale(found: Evidence) -> Iterator[str]:
    """What the winner's wire dtype does on the real run's ranks, and which others are refused."""
    setup, ranks = found.winner, found.target["world_size"]
    if setup is None:
        return
    wire, mine, unknown = setup.grad_comm_dtype, own(found, setup), unseen(found, setup)
    if mine is not None:
        yield sentence(mine, graded(found, mine))
    elif unknown is not None:
        yield f"{unknown} Name the ranks of the real run as target.world_size."
    elif wire != "fp32" and ranks is not None and ranks > found.ranks:
        yield f"What {wire} on the wire loses on {ranks:,} ranks could not be predicted."
    for item in predicted(found, setup):
        if item != mine and graded(found, item) == "refuse":
            yield sentence(item, "refuse")
    yield from _passed_over(found)


def _passed_over(found: Evidence) -> Iterator[str]:
    """Faster candidates that gave way to the winner because of the real run's ranks."""
    state, verdict = found.confirmation, found.verdict
    if state is None or verdict is None or verdict.claim is None:
        return
    for claim in verdict.claims:
        risk = own(found, claim.setup)
        faster = claim.backward.mean > verdict.claim.backward.mean
        if faster and claim.setup in state.risky and risk and verdict.winner not in state.risky:
            yield (
                f"{claim.setup.key} is faster ({claim.backward.ratio:.2f}x) and was passed over: "
                f"{sentence(risk, graded(found, risk))}"
            )


def _loss_scale(found: Evidence, skips: Sequence[Skips]) -> Iterator[str]:
    """Choices by replay, the winner's first; what its scale keeps, and what its probes skipped."""
    setup, steps = found.winner, found.target["steps"]
    mine: Finding | None = None
    if setup is not None and setup.loss_scale is not None:
        mine = found.findings.get(scale_name(setup, steps))
        if isinstance(mine, ScaleChoice):
            yield mine.text
        yield from _useful(found, setup, mine)
        yield from (item.text for item in skips if item.key == setup.key)
    others = (
        item.text
        for item in found.findings.values()
        if isinstance(item, ScaleChoice) and item.steps == steps and item != mine
    )
    yield from dict.fromkeys(others)


def _useful(found: Evidence, setup: Setup, choice: Finding | None) -> Iterator[str]:
    """Share of the real run's steps that apply an update."""
    scores = (choice.chosen, choice.usual) if isinstance(choice, ScaleChoice) else ()
    for score in scores:
        if score is not None and score.policy == setup.loss_scale:
            low, high = score.interval
            yield (
                f"With its loss scale {_fine(score.useful_step_fraction)} of the steps apply an "
                f"update (95 % of the replays: {_fine(low)} to {_fine(high)}), and "
                f"{_fine(score.stress_useful_step_fraction)} where the gradients jump and later "
                "make the scale collapse."
            )
            return
    useful = useful_steps(found.good, setup)
    if useful is not None:
        yield f"With its loss scale {_fine(useful)} of the steps apply an update, by replay."


def _refused(found: Evidence) -> Iterator[str]:
    """The fastest first: those are the ones that somebody would have taken."""
    ratios = {item.setup: f" ({item.ratio:.2f}x in the search)" for item in found.ranked}
    setups = dict.fromkeys((*ratios, *(probe.setup for probe in found.probes)))
    refused = [(setup, gate) for setup in setups if (gate := found.gates.refusal(setup))]
    for setup, gate in refused[:MOST]:
        yield f"{setup.key}{ratios.get(setup, '')} is refused by the gate {gate.reason}."
    if len(refused) > MOST:
        yield f"And {len(refused) - MOST} more are refused."


def _conditions(found: Evidence) -> Iterator[str]:
    """Limits of the user's own, and what had to be assumed of the real run."""
    changed = found.gates.changed()
    if changed:
        yield f"Limits of your own: {', '.join(changed)}."
    steps, rate = found.target["steps"], found.target["learning_rate"]
    scored = any(isinstance(item, ScaleChoice) for item in found.findings.values())
    if "steps" in found.target["assumed"] and scored:
        yield (
            f"Loss scales were replayed over {steps:,} steps, an assumption: name those of the "
            "real run as target.steps."
        )
    examined = [probe.setup for probe in found.probes if found.gates.reading(probe.setup)]
    if "learning_rate" in found.target["assumed"] and any(map(_narrow, examined)):
        yield (
            f"The short training runs took a learning rate of {rate:g}, an assumption: name that "
            "of the real run as target.learning_rate."
        )


def _cost(found: Evidence) -> Iterator[str]:
    cost = numerics_cost(found)
    if cost is not None and cost["seconds"] > 0:
        seconds = cost["seconds"]
        time = f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} minutes"
        yield f"Numerics took {time}, {100 * cost['share']:.0f} % of the run."


def share(value: float) -> str:
    """Two digits of a share, as in ``0.9 %``."""
    if value < SMALLEST:
        return f"less than {100 * SMALLEST:g} %"
    return f"{100 * value:.0f} %" if value >= 0.1 else f"{100 * value:.2g} %"


def _fine(value: float) -> str:
    """A share of steps: single ones matter."""
    return f"{100 * value:.2f} %"
