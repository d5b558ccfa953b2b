"""Warnings about whether the setups train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from autotune.numerics.findings import Finding, Missing
from autotune.numerics.names import gates_name, trace_name, wires_name
from autotune.numerics.reduction import TWO_RANKS
from autotune.numerics.thresholds import GATES
from autotune.outcome import Probe
from autotune.report import build_result
from autotune.report.training import CURES
from autotune.report.wires import FEW_RANKS
from tests.findings import FP16, RANKS, TARGET, examined, make_findings, make_wires
from tests.records import (
    BASELINE,
    BF16,
    BF16_FP32_WIRE,
    GAIN,
    NO_GAIN,
    about_of,
    run_of,
    searched,
    trained,
)

NO_RANKS = {**TARGET, "world_size": None}


def sound(**more: Finding) -> dict[str, Finding]:
    """Findings that deserve no warning."""
    findings = {**make_findings(), wires_name(BF16, RANKS): make_wires(0.001)}
    del findings["communication fsdp"]
    return {**findings, **more}


def warnings(
    findings: Mapping[str, Finding], probes: Sequence[Probe] | None = None, **about: Any
) -> dict[str, dict[str, str]]:
    """The warnings of a run by kind, without those that its noise deserves."""
    kept = about_of(BF16, **{"target": dict(TARGET), **about})
    result = build_result("t", probes or run_of({BF16: GAIN}), kept, findings, run="runs/t")
    found = {item["kind"]: item for item in result["warnings"]}
    assert len(found) == len(result["warnings"])
    return {kind: item for kind, item in found.items() if kind != "noise-above-margin"}


def test_a_run_whose_winner_trains_has_no_warning() -> None:
    assert warnings(sound()) == {}


def test_every_gate_has_an_advice() -> None:
    assert set(CURES) == set(GATES)
    assert all(text.endswith(".") for text in CURES.values())


def test_a_baseline_that_fails_is_told_every_gate_and_the_cure_of_the_first() -> None:
    found = warnings(sound(**examined(BASELINE, gain=0.5, moved_fraction=0.1)))["gate"]
    assert found["text"] == (
        f"The baseline {BASELINE.key} fails the gates gain: the applied gradient is 0.5 times that "
        "of fp32, not within 1 +- 0.01; weights-move: an applied step changes 10% of the weights, "
        "under 50%: rounding loses it."
    )
    assert found["advice"].startswith("Look at what divides the loss or its gradients")
    assert found["advice"].endswith("It is compared with all the same, since you have it.")


def test_a_winner_near_a_limit_is_told_which() -> None:
    found = warnings(sound(**examined(BF16, relative_error=0.03)))["gate-warning"]
    assert found["text"] == (
        f"{BF16.key} passes with a warning of the gate relative-error: the gradient's relative "
        "error against fp32 is 0.03, over 0.02; refused over 0.1."
    )
    assert found["advice"] == "Take a wider dtype for compute or on the wire."


def test_a_setup_near_a_limit_that_does_not_win_is_no_warning() -> None:
    assert warnings(sound(**examined(BF16_FP32_WIRE, relative_error=0.03))) == {}


def test_a_winner_that_was_not_examined_can_be_sent_through_the_gates() -> None:
    findings = sound()
    del findings[gates_name(BF16)]
    found = warnings(findings)["ungated"]
    assert found["text"] == (
        f"{BF16.key} was not examined at the gates. Whether it trains is not known."
    )
    assert found["advice"] == f"autotune confirm runs/t --setup {BF16.key} examines it first."


def test_before_the_race_it_is_the_sweep_itself_that_examines() -> None:
    findings = sound()
    del findings[gates_name(BF16)]
    about = about_of(target=dict(TARGET))
    del about["race"], about["confirmations"]
    result = build_result("t", searched(), about, findings)
    (found,) = [item for item in result["warnings"] if item["kind"] == "ungated"]
    assert found["advice"] == "autotune sweep FILE --resume examines it before its race."


def test_a_winner_that_could_not_be_examined_has_the_reason() -> None:
    found = warnings(sound(**{gates_name(BF16): Missing(reason="oom: no room")}))
    assert list(found) == ["ungated"]
    assert "could not be examined at the gates (oom: no room)" in found["ungated"]["text"]
    assert "another name" in found["ungated"]["advice"]


def test_a_baseline_that_wins_without_an_examination_is_no_warning() -> None:
    findings = sound()
    del findings[gates_name(BASELINE)]
    assert "ungated" not in warnings(findings, run_of({BF16: NO_GAIN}))


@pytest.mark.parametrize(("ring", "verdict"), [(0.012, "is a risk"), (0.12, "is refused")])
def test_a_wire_dtype_that_loses_much_at_scale_is_told(ring: float, verdict: str) -> None:
    found = warnings(sound(**{wires_name(BF16, RANKS): make_wires(ring)}))["wire-at-scale"]
    assert found["text"].startswith(f"bf16 on the wire at 512 ranks {verdict}: a flat ring loses")
    assert found["advice"] == "Keep fp32 on the wire."


@pytest.mark.parametrize(
    ("ranks", "unseen"), [(1, False), (2, True), (FEW_RANKS, True), (9, False)]
)
def test_without_a_target_a_few_ranks_cannot_show_what_a_narrow_dtype_loses(
    ranks: int, unseen: bool
) -> None:
    fingerprint = {"torch": "1", "measure": {}, "world_size": ranks}
    found = warnings(sound(), target=NO_RANKS, fingerprint=fingerprint)
    assert set(found) == ({"wire-at-scale"} if unseen else set())
    if unseen:
        said = TWO_RANKS if ranks == 2 else "A measurement on 8 ranks hardly shows it"
        assert said in found["wire-at-scale"]["text"]
        assert "target.world_size" in found["wire-at-scale"]["advice"]


def test_fp32_on_the_wire_needs_no_target() -> None:
    about = about_of(BF16_FP32_WIRE, target=NO_RANKS)
    findings = sound(**examined(BF16_FP32_WIRE))
    result = build_result("t", run_of({BF16_FP32_WIRE: GAIN}), about, findings)
    assert result["winner"] == BF16_FP32_WIRE.key
    assert "wire-at-scale" not in {item["kind"] for item in result["warnings"]}


def test_skips_that_the_replay_does_not_explain_are_told() -> None:
    run = run_of({BF16: GAIN, FP16: [ratio - 0.2 for ratio in GAIN]})
    assert warnings(sound(), trained(run, skips=1)) == {}
    found = warnings(sound(), trained(run, skips=4))["skips"]
    assert found["text"] == (
        f"In 6 probes of {FP16.key} 24 of 120 steps were skipped for overflow; replay expects 0 "
        "(0 to 9): they do not agree."
    )
    assert "measure.trace_steps" in found["advice"]


def test_limits_of_the_user_s_own_are_listed_beside_the_defaults() -> None:
    found = warnings(sound(), gates={"gain": 0.02, "loss-band": 0.005, "weights-move": 0.25})
    assert list(found) == ["limits"]
    assert found["limits"]["text"] == (
        "Setups were judged by limits of your own: gain 0.02 (default 0.01), weights-move 25% "
        "(default 50%)."
    )


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("communication fsdp", "What a narrower wire dtype can gain is not known."),
        (wires_name(FP16, 64), "What a narrow wire dtype loses on the real run's ranks"),
        (trace_name(FP16), "No loss scale could be chosen by replay."),
    ],
)
def test_a_reading_that_is_missing_says_what_is_not_known_without_it(name: str, lost: str) -> None:
    found = warnings(sound(**{name: Missing(reason="crash: because")}))["unread"]
    assert found["text"].startswith(f"Not measured: {name} (crash: because). {lost}")
    assert "another name" in found["advice"]


def test_another_setup_that_could_not_be_examined_is_no_unread_reading() -> None:
    assert warnings(sound(**{gates_name(BF16_FP32_WIRE): Missing(reason="crash: because")})) == {}
