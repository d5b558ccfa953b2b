"""The lint where it asks the consumers: what they confirm, add, overrule and refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.consult import Answer, Question
from autotune.errors import EnvironmentFailedError
from autotune.lint import Linted, installed, lint_files
from autotune.lint.liveness import Liveness, question_of, settled
from tests.lint_case import document, findings

pytest.importorskip("accelerate")
VERSIONS = {"deepspeed": "0.19.8"}
DEAD = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "fp32_allreduce": True}


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "autotune", "lint", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def answered(config: Mapping[str, Any], answer: Answer) -> tuple[list[str], Liveness]:
    """Rules that are left of a DeepSpeed file after an answer."""
    found = findings("deepspeed", json.dumps(config), VERSIONS)
    kept, live = settled("deepspeed", config, found, answer)
    return [item.rule.id for item in kept], live


def said(inert: list[list[str]], refused: str | None = None) -> Answer:
    told = {"refused": refused, "inert": inert, "tried": 7}
    return Answer(effective=told, versions={"deepspeed": "0.19.8"})


def test_the_command_tells_what_the_parser_confirms(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(DEAD))
    done = command("--json", path)
    assert done.returncode == 1, done.stderr
    (file,) = json.loads(done.stdout)["files"]
    (dead,) = [item for item in file["findings"] if item["rule"] == "inert-key"]
    assert dead["key"] == "fp32_allreduce"
    assert dead["confirmed"] is True
    assert file["perturbed"]["done"] is True
    assert f"deepspeed {installed()['deepspeed']}" in file["perturbed"]["note"]
    assert file["perturbed"]["files_tried"] > len(DEAD)


def test_a_file_that_the_parser_refuses_for_no_known_reason_is_told_in_its_words(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ds.json"
    config = {
        **DEAD,
        "scheduler": {"type": "WarmupLR"},
        "weight_quantization": {"post_init_quant": 1},
    }
    path.write_text(
        json.dumps({**config, "gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3}})
    )
    (item,) = lint_files([path], versions=installed())
    assert isinstance(item, Linted)
    (found,) = [one for one in item.findings if one.rule.id == "consumer-refuses"]
    assert "is not supported with ZeRO stage 3" in found.text
    assert not item.liveness.done


def test_what_the_tables_know_to_be_refused_does_not_hide_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**DEAD, "amp": {"enabled": False}, "bf16": {"enabled": "x"}}))
    (item,) = lint_files([path], versions=installed())
    assert isinstance(item, Linted)
    assert item.liveness.done
    rules = {one.rule.id: one.confirmed for one in item.findings}
    assert rules["inert-key"] is True
    assert {"ds-removed-key", "wrong-type"} <= set(rules)


def test_a_key_that_the_consumer_reads_is_not_dead_whatever_the_table_says() -> None:
    kept, live = answered(DEAD, said([]))
    assert "inert-key" not in kept
    assert live.done


def test_a_dead_key_that_no_table_knows_is_added() -> None:
    kept, _ = answered(DEAD, said([["fp32_allreduce"], ["gradient_clipping"]]))
    assert kept.count("inert-key") == 2


def test_a_key_that_others_read_is_excused() -> None:
    config = {**DEAD, "vocabulary_size": 64}
    kept, _ = answered(config, said([["fp32_allreduce"], ["vocabulary_size"]]))
    assert kept.count("inert-key") == 1


def test_without_the_consumer_the_findings_are_those_of_the_tables() -> None:
    kept, live = answered(DEAD, Answer(missing=("deepspeed",)))
    assert "inert-key" in kept
    assert (live.done, live.note) == (False, "deepspeed is not installed")


def test_a_reader_that_fails_is_no_finding() -> None:
    kept, live = answered(DEAD, Answer(refused="KeyError: 'x'"))
    assert "consumer-refuses" not in kept
    assert live.note == "the reader failed: KeyError: 'x'"


def test_a_process_of_readers_that_dies_leaves_the_findings_of_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> list[Answer]:
        raise EnvironmentFailedError("The configuration readers died")

    monkeypatch.setattr("autotune.lint.linted.consult", die)
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(DEAD))
    (item,) = lint_files([path], versions=VERSIONS)
    assert isinstance(item, Linted)
    assert "inert-key" in [one.rule.id for one in item.findings]
    assert item.liveness.note == "the reader failed: The configuration readers died"


def test_every_key_is_asked_for_but_notes_and_what_is_refused() -> None:
    config = {"_note": "x", "amp": {}, "fp16": {"enabled": True, "x": 1}, "zero_optimization": {}}
    found = findings("deepspeed", json.dumps(config), VERSIONS)
    question = question_of("deepspeed", config, found, Path())
    assert isinstance(question, Question)
    assert question.options["keys"] == [["fp16", "enabled"]]
    assert ["fp16", "x"] in question.options["drop"]


def test_a_file_that_names_one_that_is_not_here_is_not_asked_for() -> None:
    config = {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": "nowhere.json"},
    }
    assert question_of("accelerate", config, [], Path()) == "nowhere.json is not here"


def test_arguments_are_asked_for_their_blocks(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text(
        "output_dir: x\nbf16: true\nfsdp: true\n"
        "fsdp_config:\n  version: 2\n  reduce_dtype: fp32\n  nonsense: 1\n"
    )
    (item,) = lint_files([path], versions=installed())
    assert isinstance(item, Linted)
    assert item.liveness.done, item.liveness
    dead = {str(one.key[-1]): one.confirmed for one in item.findings if one.inert}
    assert dead == {"reduce_dtype": True, "nonsense": True}


def test_an_inner_deepspeed_block_is_asked_for_as_transformers_fills_it(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    inner = {
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": "auto"},
        "monitor_config": {"enabled": True},
    }
    path.write_text(json.dumps({"output_dir": "x", "bf16": True, "deepspeed": inner}))
    (item,) = lint_files([path], versions=installed())
    assert isinstance(item, Linted)
    assert item.liveness.done, item.liveness
    assert [(one.key, one.confirmed) for one in item.findings if one.inert] == [
        (("deepspeed", "monitor_config"), True)
    ]


def test_a_contradiction_stops_transformers_in_these_words(tmp_path: Path) -> None:
    from importlib import import_module

    observe: Any = import_module("autotune.consumer.perturb_huggingface").observe
    config = {"deepspeed": {"gradient_clipping": 0.5, "train_micro_batch_size_per_gpu": 8}}
    with pytest.raises(ValueError, match=r"ds gradient_clipping=0\.5 vs hf max_grad_norm=1\.0"):
        observe(config)
    text = json.dumps({"output_dir": "x", **config})
    found = [item.rule.id for item in findings("huggingface", text)]
    assert found.count("hf-deepspeed-mismatch") == 1
    assert document(text).format == "json"
