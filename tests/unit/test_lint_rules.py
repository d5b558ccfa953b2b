"""Every rule: its data, a file that it finds at the right line, and a twin that it does not."""

from __future__ import annotations

import re

import pytest

from autotune.lint import LEVELS, RULES
from autotune.lint.checks import findings_in
from autotune.lint.edits import apply_edits
from autotune.lint.finding import place_of
from autotune.lint.fix import repair
from autotune.lint.versions import CONSUMERS, PART
from tests.lint_case import VERSIONS, Case, document, findings, rules
from tests.lint_cases import CASES

ALL = [
    pytest.param(name, case, id=f"{name}-{position}")
    for name, cases in CASES.items()
    for position, case in enumerate(cases)
]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_says_what_why_who_says_so_and_what_to_do(name: str) -> None:
    rule = RULES[name]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.id)
    assert rule.level in LEVELS
    for text in (rule.what, rule.why, rule.fix):
        assert text.endswith("."), text
    assert len(rule.source) > 20
    assert set(rule.versions) <= set(CONSUMERS)
    for spec in rule.versions.values():
        assert "".join("".join(part) for part in PART.findall(spec)) == spec.replace(",", "")


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == set(RULES) - {"consumer-refuses"}


@pytest.mark.parametrize(("name", "case"), ALL)
def test_a_rule_finds_its_case_on_its_line(name: str, case: Case) -> None:
    found = [item for item in findings(case.kind, case.bad, case.versions) if item.rule.id == name]
    assert found, rules(case.kind, case.bad, case.versions)
    assert case.line in [place_of(document(case.bad), item).line for item in found]


@pytest.mark.parametrize(("name", "case"), ALL)
def test_a_rule_does_not_find_the_twin(name: str, case: Case) -> None:
    assert name not in rules(case.kind, case.good, case.versions)


@pytest.mark.parametrize(("name", "case"), ALL)
def test_the_edits_of_a_finding_end_it(name: str, case: Case) -> None:
    before = document(case.bad)
    for item in findings(case.kind, case.bad, case.versions):
        if item.rule.id != name or not item.edits:
            continue
        after = repair(before, item)
        assert after is not None, item
        again = findings_in(after, case.kind, case.versions)
        assert (name, item.key) not in [(other.rule.id, other.key) for other in again]


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.fixable])
def test_a_rule_that_can_be_fixed_has_a_case_with_edits(name: str) -> None:
    assert any(
        item.edits
        for case in CASES[name]
        for item in findings(case.kind, case.bad, case.versions)
        if item.rule.id == name
    )


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not rule.fixable])
def test_a_rule_that_cannot_be_fixed_has_no_edits(name: str) -> None:
    for case in CASES.get(name, ()):
        for item in findings(case.kind, case.bad, case.versions):
            assert item.rule.id != name or not item.edits


FP16 = '{"fp16": {"enabled": true}}'


@pytest.mark.parametrize(
    ("number", "told"),
    [("0.18.2", False), ("0.18.3", True), ("0.19.8", True), ("0.19.9", False), (None, True)],
)
def test_a_rule_is_silent_where_the_version_is_not_affected(number: str | None, told: bool) -> None:
    versions = {} if number is None else {"deepspeed": number}
    assert ("ds-fp16-stage-0" in rules("deepspeed", FP16, versions)) is told


def test_fp16_that_the_script_may_choose_is_a_warning_only() -> None:
    text = '{"fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 0}}'
    (item,) = [one for one in findings("deepspeed", text) if one.rule.id == "ds-fp16-stage-0"]
    assert item.level == "warning"


def test_the_clipping_that_is_written_out_is_the_one_of_the_version() -> None:
    for number, value in (("0.19.8", 1.0), ("0.19.2", 0.0)):
        (item,) = [
            one
            for one in findings("deepspeed", '{"bf16": {}}', {"deepspeed": number})
            if one.rule.id == "ds-clipping-by-version"
        ]
        after = apply_edits(document('{"bf16": {}}'), item.edits)
        assert after.data["gradient_clipping"] == value


def test_a_block_of_deepspeed_in_arguments_is_linted_under_its_path() -> None:
    text = "bf16: true\ndeepspeed:\n  zero_optimization: {stage: 2}\n  comms_logger: {}\n"
    found = {item.rule.id: item.key for item in findings("huggingface", text)}
    assert found["ds-comms-logger"] == ("deepspeed", "comms_logger")
    assert "ds-auto" not in found


def test_a_default_of_transformers_contradicts_too() -> None:
    text = "bf16: true\ndeepspeed:\n  gradient_clipping: 0.5\n"
    (item,) = [one for one in findings("huggingface", text) if "mismatch" in one.rule.id]
    assert "max_grad_norm is absent, which means 1.0" in item.text


@pytest.mark.parametrize(
    ("value", "level"),
    [("1e-5", "warning"), ('"8"', "warning"), ("many", "error"), ("[1]", "error")],
)
def test_a_text_that_some_parser_converts_is_a_warning_only(value: str, level: str) -> None:
    (item,) = findings("huggingface", f"output_dir: x\nlearning_rate: {value}\n")
    assert (item.rule.id, item.level) == ("wrong-type", level)


def test_arguments_of_the_script_itself_are_its_own_business() -> None:
    text = "output_dir: x\nmodel_name_or_path: y\ndataset_name: z\npacking: true\nmax_length: 9\n"
    assert findings("huggingface", text) == []


@pytest.mark.parametrize(
    "name",
    [
        "bf16_zero2.json",
        "fp16_zero1.json",
        "accelerate_fsdp2.yaml",
        "accelerate_named.yaml",
        "training_args.yaml",
        "fsdp_config.json",
    ],
)
def test_a_file_without_fault_gets_no_finding(name: str) -> None:
    from pathlib import Path

    from autotune.lint import Linted, lint_files

    path = Path(__file__).parents[1] / "configs" / "faultless" / name
    (item,) = lint_files([path], versions=VERSIONS, consumer=False)
    assert isinstance(item, Linted)
    assert item.findings == ()
