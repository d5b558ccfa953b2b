"""The numerics of a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from autotune.numerics.findings import Finding, Missing, ScaleChoice
from autotune.numerics.names import communication_name, gates_name, scale_name, wires_name
from autotune.numerics.reduction import TWO_RANKS
from autotune.outcome import Probe
from autotune.report import build_result
from autotune.report.words import MOST, share
from autotune.setup import Setup
from tests.build import make_measurement, make_probe, make_setup
from tests.findings import (
    FP16,
    RANKS,
    STEPS,
    TARGET,
    examined,
    make_communication,
    make_findings,
    make_wires,
)
from tests.records import BASELINE, BF16, FSDP, GAIN, NO_GAIN, about_of, run_of, trained

NO_RANKS = {**TARGET, "world_size": None}
KNOWN = {**TARGET, "assumed": []}


def words_of(
    findings: Mapping[str, Finding],
    winner: Setup = BF16,
    probes: Sequence[Probe] | None = None,
    **about: Any,
) -> list[str]:
    """Of a run that ``winner`` has won."""
    kept = about_of(winner, **{"target": dict(KNOWN), **about})
    run = build_result("t", probes or run_of({winner: GAIN}), kept, findings)
    assert run["winner"] == winner.key
    found: list[str] = run["numerics"]["words"]
    return found


def test_the_words_begin_with_the_winner_and_end_with_the_conditions() -> None:
    assert words_of(make_findings(), gates={"gain": 0.02}) == [
        "Compute in bf16 over fp32 master weights; gradients travel as bf16.",
        "Its gradient is 1.0005 times that of fp32 along its direction and differs from it by "
        "0.8 % of its norm (limit 10 %); the worst tensor, layers.0.weight, by 2 %.",
        "It passes all 9 gates.",
        "After 20 training steps the loss ends at 2.66, fp32's at 2.66: the difference is 0%, at "
        "most 0.5% (over 3 sigma of 4 fp32 runs with the batches in different orders).",
        "With deepspeed stages 0 and 1, gradient communication is exposed for 3.0 ms of a 10.0 ms "
        "backward (30 %, 95 % interval 29 % to 31 %): a wire dtype of half the bytes can gain at "
        "most 1.18x.",
        "bf16 on the wire at 512 ranks is a risk: a flat ring loses 1.2 % of the gradient (an "
        "upper bound), a tree 0.28 %, fp32 accumulation 0.17 %.",
        "deepspeed: 2^12 keeps the most steps.",
        "Limits of your own: gain 0.02 (default 0.01).",
    ]


@pytest.mark.parametrize(
    ("setup", "start"),
    [
        (make_setup(zero_stage=2), "Compute in fp32; gradients travel as fp32."),
        (make_setup(precision="tf32"), "Compute in TF32 products over fp32 weights; gradients"),
        (FSDP, "Compute in bf16 over fp32 master weights; gradients travel as bf16."),
        (
            FP16,
            "Compute in fp16 over fp32 master weights; gradients travel as fp16; the loss scale "
            "starts at 2^12 with window 1,000 and hysteresis 2.",
        ),
    ],
)
def test_the_first_sentence_says_what_is_computed_and_sent_in_which_dtype(
    setup: Setup, start: str
) -> None:
    assert words_of(make_findings(), setup)[0].startswith(start)


def test_where_everything_is_fp32_the_words_are_few() -> None:
    winner = make_setup(zero_stage=2)
    findings = {**examined(BASELINE), **examined(winner)}
    assert words_of(findings, winner, target=dict(TARGET)) == [
        "Compute in fp32; gradients travel as fp32.",
        "It passes all 8 gates.",
    ]


def test_a_baseline_that_is_kept_without_an_examination_has_its_dtypes_alone() -> None:
    about = about_of(BF16, target=dict(KNOWN))
    result = build_result(
        "t", run_of({BF16: NO_GAIN}), about, {communication_name(FSDP): make_communication()}
    )
    assert result["winner"] == BASELINE.key
    assert result["numerics"]["words"] == ["Compute in fp32; gradients travel as fp32."]


def test_a_gate_s_warning_and_a_baseline_s_failure_are_told_with_the_winner() -> None:
    words = words_of(make_findings(**examined(BF16, relative_error=0.03)))
    assert words[2] == (
        "It passes all 9 gates, with a warning of relative-error: the gradient's relative error "
        "against fp32 is 0.03, over 0.02; refused over 0.1."
    )
    about = about_of(BF16, target=dict(KNOWN))
    findings = make_findings(**examined(BASELINE, gain=0.5))
    kept = build_result("t", run_of({BF16: NO_GAIN}), about, findings)
    assert kept["numerics"]["words"][1] == (
        "It passes 7 of 8 gates. It fails gain: the applied gradient is 0.5 times that of fp32, "
        "not within 1 +- 0.01."
    )


def test_a_gradient_that_is_no_number_is_left_to_the_gate_that_fails() -> None:
    baseline = make_setup(precision="bf16", grad_comm_dtype="bf16", zero_stage=2)
    about = about_of(target=dict(KNOWN), baseline=baseline.to_dict())
    findings = examined(baseline, gain=math.nan, relative_error=math.inf)
    probe = make_probe(0, baseline, baseline=True)
    words = build_result("t", [probe], about, findings)["numerics"]["words"]
    assert not any(word.startswith("Its gradient") for word in words)
    assert "It fails gain: the applied gradient is no finite multiple of" in words[1]


def test_a_wide_band_is_said_to_be_the_spread_of_fp32() -> None:
    spread = tuple(tuple(3.0 + shift for _ in range(20)) for shift in (-0.1, 0.0, 0.1))
    findings = make_findings(**examined(BF16, permuted_losses=spread))
    (loss,) = [word for word in words_of(findings) if word.startswith("After 20")]
    assert loss.endswith("(3 sigma of 4 fp32 runs with the batches in different orders).")


def test_a_winner_that_was_not_or_could_not_be_examined_is_said_to_be_unknown() -> None:
    findings = make_findings()
    del findings[gates_name(BF16)]
    assert words_of(findings)[1] == (
        "It was not examined at the gates: whether it trains is not known."
    )
    findings[gates_name(BF16)] = Missing(reason="oom: no room")
    assert words_of(findings)[1] == "It could not be examined at the gates (oom: no room)."


def test_an_axis_that_communication_closed_is_said_to_be_out_of_the_search() -> None:
    closed = make_communication(closed=True)
    words = words_of({communication_name(BF16): closed})
    assert (
        "With deepspeed stages 0 and 1, no more than noise. Narrower wire dtypes were left out of "
        "the search."
    ) in words


def test_communication_of_other_reducers_than_the_winner_s_is_not_its_reason() -> None:
    words = words_of({communication_name(FSDP): make_communication()})
    assert not any("communication" in word for word in words)


def test_refused_wire_dtypes_are_told_beside_the_winner_s_own() -> None:
    winner = make_setup(precision="bf16", grad_comm_dtype="fp32")
    words = words_of({wires_name(winner, RANKS): make_wires(0.12)}, winner)
    assert [word.split(":")[0] for word in words[-2:]] == [
        "fp32 on the wire at 512 ranks is fine",
        "bf16 on the wire at 512 ranks is refused",
    ]


def test_without_a_target_a_narrow_wire_dtype_is_said_to_be_unseen() -> None:
    words = words_of(make_findings(), target=NO_RANKS)
    (unseen,) = [word for word in words if TWO_RANKS in word]
    assert unseen.startswith("What bf16 on the wire loses over many ranks was not predicted")
    wide = words_of(make_findings(), make_setup(precision="bf16"), target=NO_RANKS)
    assert not any(TWO_RANKS in word for word in wide)


def test_where_the_prediction_is_missing_that_is_said() -> None:
    findings = make_findings(**{wires_name(BF16, RANKS): Missing(reason="crash: because")})
    said = "What bf16 on the wire loses on 512 ranks could not be predicted."
    assert said in words_of(findings)
    few = {**KNOWN, "world_size": 2}
    assert not any("predicted" in word for word in words_of(findings, target=few))


def test_an_fp16_winner_has_its_choice_its_useful_steps_and_its_skips_in_a_row() -> None:
    probes = trained(run_of({FP16: GAIN}), skips=1)
    findings = make_findings(**examined(FP16))
    words = words_of(findings, FP16, probes)
    start = words.index("deepspeed: 2^12 keeps the most steps.")
    assert words[start + 1 : start + 3] == [
        "With its loss scale 99.81 % of the steps apply an update (95 % of the replays: 99.80 % to "
        "99.81 %), and 98.81 % where the gradients jump and later make the scale collapse.",
        f"In 6 probes of {FP16.key} 6 of 120 steps were skipped for overflow; replay expects 0 "
        "(0 to 9).",
    ]
    assert words.count("deepspeed: 2^12 keeps the most steps.") == 1


def test_a_loss_scale_that_was_not_chosen_has_the_useful_steps_of_its_own_replay() -> None:
    findings = make_findings()
    del findings[scale_name(FP16, STEPS)]
    words = words_of(findings, FP16, trained(run_of({FP16: GAIN}), useful=0.9932))
    assert "With its loss scale 99.32 % of the steps apply an update, by replay." in words
    untold = words_of(findings, FP16, trained(run_of({FP16: GAIN})))
    assert not any("apply an update" in word for word in untold)


def test_a_choice_for_another_length_of_the_run_is_not_told() -> None:
    longer = {**KNOWN, "steps": 2 * STEPS}
    words = words_of(make_findings(), target=longer)
    assert not any(word.startswith("deepspeed:") for word in words)


def test_equal_choices_for_several_shapes_are_told_once() -> None:
    findings = make_findings()
    choice = findings[scale_name(FP16, STEPS)]
    assert isinstance(choice, ScaleChoice)
    other = scale_name(replace(FP16, micro_batch=4), STEPS)
    words = words_of({**findings, other: replace(choice, micro_batch=4)})
    assert words.count(choice.text) == 1


def refused_run(number: int) -> tuple[list[Probe], dict[str, Finding]]:
    """A run in which so many setups beside the winner are refused, the last one the fastest."""
    probes, findings = run_of({BF16: GAIN}), make_findings()
    for index in range(number):
        setup = make_setup(precision="bf16", bucket_bytes=1_000_000 + index)
        measured = make_measurement(0.06 - 0.001 * index, end_to_end=0.4, steps=2)
        probes.append(make_probe(len(probes), setup, measurement=measured))
        findings |= examined(setup, gain=0.5)
    return probes, findings


def test_a_refused_setup_is_told_with_its_gate_and_what_it_gained_in_the_search() -> None:
    probes, findings = refused_run(1)
    key = probes[-1].setup.key
    assert (
        f"{key} (1.70x in the search) is refused by the gate gain: the applied gradient is 0.5 "
        "times that of fp32, not within 1 +- 0.01."
    ) in words_of(findings, probes=probes)


def test_of_many_refused_setups_the_fastest_are_told_and_the_others_counted() -> None:
    probes, findings = refused_run(MOST + 2)
    words = words_of(findings, probes=probes)
    told = [word for word in words if "is refused by the gate" in word]
    assert [word.split(" ")[0] for word in told] == [
        probe.setup.key for probe in probes[: -MOST - 1 : -1]
    ]
    assert words[words.index(told[-1]) + 1] == "And 2 more are refused."


def test_what_is_assumed_of_the_real_run_is_said_where_it_matters() -> None:
    words = words_of(make_findings(), target=dict(TARGET))
    assert words[-2:] == [
        "Loss scales were replayed over 10,000 steps, an assumption: name those of the real run "
        "as target.steps.",
        "The short training runs took a learning rate of 0.0003, an assumption: name that of the "
        "real run as target.learning_rate.",
    ]
    findings = make_findings()
    del findings[scale_name(FP16, STEPS)]
    assert not any("replayed over" in word for word in words_of(findings, target=dict(TARGET)))


def test_a_limit_that_follows_the_dtype_has_a_range_as_its_default() -> None:
    words = words_of(make_findings(), gates={"relative-error": 0.05, "gain": 0.01})
    assert words[-1] == "Limits of your own: relative-error 0.05 (default 0.0005 to 0.1 by dtype)."


@pytest.mark.parametrize(("seconds", "time"), [(4.25, "4.2 s"), (150.0, "2.5 minutes")])
def test_what_numerics_cost_is_told_in_seconds_or_minutes(seconds: float, time: str) -> None:
    cost = {"launches": 1, "probes": 0, "launch_seconds": 1.0, "probe_seconds": 0.0}
    spent = {
        "numerics": {**cost, "seconds": seconds},
        "search": {**cost, "seconds": 3 * seconds},
    }
    words = words_of(make_findings(), spent=spent)
    assert words[-1] == f"Numerics took {time}, 25 % of the run."
    spent["numerics"]["seconds"] = 0.0  # of a replay
    assert not any("Numerics took" in word for word in words_of(make_findings(), spent=spent))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "50 %"), (0.1, "10 %"), (0.0094, "0.94 %"), (1e-7, "less than 0.001 %")],
)
def test_shares_have_two_digits(value: float, text: str) -> None:
    assert share(value) == text
