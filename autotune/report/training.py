"""Warnings about whether the setups train, and about what was not looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autotune.numerics.findings import Missing
from autotune.numerics.gates import GateResult, Status, refusal
from autotune.numerics.reduction import sentence
from autotune.numerics.thresholds import GateName
from autotune.report.evidence import Evidence
from autotune.report.skips import count_skips
from autotune.report.warning import Warning, WarningKind
from autotune.report.wires import graded, own, unseen
from autotune.setup import Setup

WIDER = "Take a wider dtype for compute or on the wire."
CURES: Mapping[GateName, str] = {
    "finite-forward": "Compute in bf16 or fp32: a loss scale cannot mend the forward pass.",
    "activation-headroom": "Compute in bf16, which has the range of fp32.",
    "skipped-steps": "Start with a lower loss scale, or look for what overflows.",
    "underflow": "Start with a higher loss scale, or compute in bf16.",
    "gain": "Look at what divides the loss or its gradients: micro-batches, ranks, a loss scale.",
    "relative-error": WIDER,
    "cosine": WIDER,
    "worst-tensor": f"Look at the layer of that tensor. {WIDER}",
    "same-gradient": "Take the sharding of the other setup, which should train the same way.",
    "weights-move": "Keep the master weights in fp32, or name the real target.learning_rate.",
    "gradient-norm": "Look at what divides the loss or its gradients; a script that draws other "
    "batches in each run cannot be compared: seed it.",
    "loss-band": "Train it for longer beside fp32 before you rely on it.",
    "wire-error": "Keep fp32 on the wire.",
}
LOSSES: Mapping[str, str] = {
    "communication": "What a narrower wire dtype can gain is not known.",
    "wires": "What a narrow wire dtype loses on the real run's ranks is not known; fp32 is safe.",
    "trace": "No loss scale could be chosen by replay.",
}
ONCE = "A reading is tried once in a run: remove its cause and sweep under another name."


def gate(found: Evidence) -> Iterator[Warning]:
    """The baseline would be refused if it were not what the user has."""
    results = found.gates.results(found.baseline)
    first = refusal(results)
    if first is not None:
        yield Warning(
            WarningKind.GATE,
            f"The baseline {found.baseline.key} fails {_named(results, 'fail')}.",
            f"{CURES[first.gate]} It is compared with all the same, since you have it.",
        )


def gate_warning(found: Evidence) -> Iterator[Warning]:
    """The winner passes, but not by far."""
    winner = found.winner
    results = () if winner is None else found.gates.results(winner)
    warned = [item for item in results if item.status == "warn"]
    if winner is not None and warned:
        yield Warning(
            WarningKind.GATE_WARNING,
            f"{winner.key} passes with a warning of {_named(results, 'warn')}.",
            " ".join(dict.fromkeys(CURES[item.gate] for item in warned)),
        )


def _named(results: Sequence[GateResult], status: Status) -> str:
    """The gates with one status, and what they say."""
    named = [item.reason for item in results if item.status == status]
    return f"the gate{'s' if len(named) > 1 else ''} {'; '.join(named)}"


def ungated(found: Evidence, run: str) -> Iterator[Warning]:
    """Nobody knows whether the winner trains."""
    winner = found.winner
    if winner is None or winner == found.baseline or not found.findings:
        return
    if found.gates.reading(winner) is not None or found.gates.training(winner) is not None:
        return
    missing = found.gates.missing(winner)
    if missing is not None:
        text = f"{winner.key} could not be examined at the gates ({missing})."
        yield Warning(WarningKind.UNGATED, f"{text} Whether it trains is not known.", ONCE)
        return
    yield Warning(
        WarningKind.UNGATED,
        f"{winner.key} was not examined at the gates. Whether it trains is not known.",
        _examine(found, winner, run),
    )


def _examine(found: Evidence, winner: Setup, run: str) -> str:
    if "race" not in found.about:
        return "autotune sweep FILE --resume examines it before its race."
    return f"autotune confirm {run} --setup {winner.key} examines it first."


def wire_at_scale(found: Evidence) -> Iterator[Warning]:
    """The winner's wire dtype loses much on the real run's ranks, or nobody knows how much."""
    winner = found.winner
    if winner is None or not found.findings:
        return
    mine, unknown = own(found, winner), unseen(found, winner)
    grade = "pass" if mine is None else graded(found, mine)
    if mine is not None and grade != "pass":
        yield Warning(WarningKind.WIRE_AT_SCALE, sentence(mine, grade), CURES["wire-error"])
    if unknown is not None:
        advice = "Name the ranks of the real run as target.world_size."
        yield Warning(WarningKind.WIRE_AT_SCALE, unknown, advice)


def skips(found: Evidence) -> Iterator[Warning]:
    """The replay of loss scales does not describe the probes."""
    differing = [item.text for item in count_skips(found) if not item.agrees]
    if differing:
        yield Warning(
            WarningKind.SKIPS,
            " ".join(differing),
            "Distrust the useful steps here. A longer measure.trace_steps, in a sweep of another "
            "name, shows replay more of what overflows.",
        )


def limits(found: Evidence) -> Iterator[Warning]:
    """Setups were judged by other limits than the tested ones."""
    changed = found.gates.changed()
    if changed and found.findings:
        yield Warning(
            WarningKind.LIMITS,
            f"Setups were judged by limits of your own: {', '.join(changed)}.",
            "Take them out of gates in the sweep file to have the defaults back.",
        )


def unread(found: Evidence) -> Iterator[Warning]:
    """A reading that could not be taken; the gates have warnings of their own."""
    for name, item in found.findings.items():
        kind = name.split()[0]
        if isinstance(item, Missing) and kind != "gates":
            lost = LOSSES.get(kind, "")
            text = f"Not measured: {name} ({item.reason}). {lost}"
            yield Warning(WarningKind.UNREAD, text.rstrip(), ONCE)
