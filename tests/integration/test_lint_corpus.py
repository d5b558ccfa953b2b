"""The lint over public files: no crash, the known dead keys, and every one of them confirmed.

The files are no part of the project; where they are absent those tests are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.lint import Linted, Skipped, fix, installed, lint_files
from autotune.lint.document import Document, parse_document
from autotune.lint.finding import Finding, place_of
from autotune.lint.places import dotted

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
FAULTLESS = Path(__file__).parents[1] / "configs" / "faultless"
FILES = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
pytestmark = pytest.mark.timeout(400)  # one process reads some 2500 files for the tests here
public = pytest.mark.skipif(not FILES, reason="the public files are not here")

pytest.importorskip("accelerate")

KNOWN_DEAD: Mapping[str, tuple[tuple[str, str], ...]] = {
    "ContextualAI__HALOs__fsdp_8gpu.yaml": (
        ("fsdp1-prefetch-old-name", "fsdp_config.fsdp_backward_prefetch_policy"),
    ),
    "ContextualAI__HALOs__fsdp_2x8gpu.yaml": (
        ("fsdp1-prefetch-old-name", "fsdp_config.fsdp_backward_prefetch_policy"),
    ),
    "NVIDIA__Model-Optimizer__accelerate_fsdp2_hybrid.yaml": (
        ("fsdp2-hybrid", "fsdp_config.fsdp_sharding_strategy"),
        ("inert-key", "fsdp_config.fsdp_use_orig_params"),
    ),
    "huggingface__trl__fsdp1.yaml": (("fsdp1-reshard", "fsdp_config.fsdp_reshard_after_forward"),),
    "huggingface__trl__alst_ulysses_4gpu.yaml": (
        ("inert-key", "deepspeed_config.seq_parallel_communication_data_type"),
    ),
    "foundation-model-stack__fms-hf-tuning__accelerate_fsdp_defaults.yaml": (
        ("inert-key", "fsdp_config.fsdp_backward_prefetch_policy"),
    ),
    "hiyouga__LLaMA-Factory__examples_deepspeed_ds_z3_fp8_config.json": (
        ("inert-key", "comms_config"),
        ("inert-key", "monitor_config"),
    ),
    "NOTFSDP__Luodian__Otter__accelerate_config_fsdp.yaml": (
        ("inert-key", "downcast_bf16"),
        ("inert-key", "main_process_port"),
    ),
}
"""Every dead key of the public files, and the rule that tells it."""


def by_table() -> dict[str, Linted | Skipped]:
    items = lint_files(FILES, versions=installed(), consumer=False)
    return {item.path.name: item for item in items}


@pytest.fixture(scope="module")
def by_consumer() -> dict[str, Linted]:
    items = lint_files(FILES, versions=installed(), folder=CORPUS / "accelerate")
    return {item.path.name: item for item in items if isinstance(item, Linted)}


def names(findings: tuple[Finding, ...]) -> set[tuple[str, str]]:
    return {(item.rule.id, dotted(item.key)) for item in findings}


@public
def test_every_public_file_is_linted_but_those_of_neox() -> None:
    assert len(FILES) == 69
    skipped = [item for item in by_table().values() if isinstance(item, Skipped)]
    assert len(skipped) == 3
    assert all("gpt-neox" in item.why for item in skipped)


@public
def test_the_known_dead_keys_are_found_and_no_others() -> None:
    for name, item in by_table().items():
        if isinstance(item, Linted):
            dead = tuple(found for found in item.findings if found.inert)
            assert names(dead) == set(KNOWN_DEAD.get(name, ())), name


@public
def test_every_dead_key_is_confirmed_by_its_consumer(by_consumer: dict[str, Linted]) -> None:
    confirmed = 0
    for name, item in by_consumer.items():
        for found in item.findings:
            if found.inert:
                assert found.confirmed, (name, found)
                confirmed += 1
    assert confirmed == sum(map(len, KNOWN_DEAD.values()))


@public
def test_the_consumers_find_what_the_tables_find(by_consumer: dict[str, Linted]) -> None:
    tables = by_table()
    for name, item in by_consumer.items():
        table = tables[name]
        assert isinstance(table, Linted)
        assert names(item.findings) == names(table.findings), name


@public
def test_every_consumer_answers_but_where_a_file_is_not_here(
    by_consumer: dict[str, Linted],
) -> None:
    silent = {
        name: item.liveness.note for name, item in by_consumer.items() if not item.liveness.done
    }
    assert set(silent) == {"huggingface__accelerate__deepspeed.yaml"}
    assert "is not here" in silent["huggingface__accelerate__deepspeed.yaml"]


@public
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_finding_stands_on_the_line_of_its_key(path: Path) -> None:
    (item,) = lint_files([path], versions=installed(), consumer=False)
    if isinstance(item, Skipped):
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    for found in item.findings:
        if found.key in item.document.entries:
            place = place_of(item.document, found)
            written = lines[place.line - 1][place.column - 1 : place.end_column - 1]
            assert written.strip("\"'") == found.key[-1]


@public
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_repair_leaves_nothing_to_repair_and_no_other_key_changed(path: Path) -> None:
    (item,) = lint_files([path], versions=installed(), consumer=False)
    if isinstance(item, Skipped):
        return
    fixed = fix(item, installed())
    assert fixed.left == ()
    after = parse_document(fixed.text, is_yaml=item.document.format == "yaml")
    assert isinstance(after, Document)
    touched = {edit.path for found in fixed.repaired for edit in found.edits}
    for key, entry in item.document.entries.items():
        inside = any(key[: len(other)] == other or other[: len(key)] == key for other in touched)
        if not inside:
            assert key in after.entries
            assert after.written(after.entries[key].value) == item.document.written(entry.value)


@public
def test_a_sample_of_findings_is_what_its_reader_would_expect() -> None:
    found = {
        name: names(item.findings) for name, item in by_table().items() if isinstance(item, Linted)
    }
    assert ("ds-fp16-stage-0", "fp16.enabled") in found[
        "hiyouga__LLaMA-Factory__examples_deepspeed_ds_z0_config.json"
    ]
    internvl = found["OpenGVLab__InternVL__internvl_chat_zero_stage1_config.json"]
    assert ("ds-initial-scale-high", "fp16.initial_scale_power") in internvl
    assert ("ds-timers", "wall_clock_breakdown") in internvl
    assert ("unknown-key", "compile.backend") in found[
        "axolotl-ai-cloud__axolotl__deepspeed_configs_zero2_torch_compile.json"
    ]
    assert found["huggingface__accelerate__fp8.yaml"] == set()


def test_files_without_fault_get_no_finding_of_their_consumers_either() -> None:
    paths = sorted(FAULTLESS.iterdir())
    assert len(paths) == 6
    for item in lint_files(paths, versions=installed(), folder=FAULTLESS):
        assert isinstance(item, Linted)
        assert item.findings == (), item.path
        assert item.liveness.done, (item.path, item.liveness)
