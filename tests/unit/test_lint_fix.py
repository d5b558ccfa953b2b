"""The repair of a file: everything that can be repaired is, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.lint import Linted, fix, fixed_path, lint_files
from tests.lint_case import VERSIONS
from tests.lint_cases import CASES

ACCELERATE = """\
# Our nightly run.
compute_environment: LOCAL_MACHINE
distributed_type: FSDP   # two nodes
mixed_precision: no
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch_policy: BACKWARD_PRE   # overlap!
  fsdp_reshard_after_forward: SHARD_GRAD_OP
  fsdp_offload_parms: false
  fsdp_version: 1
"""
REPAIRED = """\
# Our nightly run.
compute_environment: LOCAL_MACHINE
distributed_type: FSDP   # two nodes
mixed_precision: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE   # overlap!
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_offload_params: false
  fsdp_version: 1
"""
DEEPSPEED = """\
{
  // loss scale
  "loss_scale_window": 500,
  "hysteresis": 0,
  "fp16": {"enabled": true},
  "zero_optimization": {
    "stage": 1,
    "allgather_partitions": true,
    "reduce_bucket_size": "5e8" /* elements */
  },
  "comms_logger": {"enabled": false},
  "gradient_clipping": 1.0
}
"""
HEALED = """\
{
  // loss scale
  "fp16": {"hysteresis": 2, "loss_scale_window": 500, "enabled": true},
  "zero_optimization": {
    "stage": 1,
    "reduce_bucket_size": 500000000 /* elements */
  },
  "gradient_clipping": 1.0
}
"""


def linted(path: Path, text: str) -> Linted:
    path.write_text(text)
    (item,) = lint_files([path], versions=VERSIONS, consumer=False)
    assert isinstance(item, Linted)
    return item


@pytest.mark.parametrize(
    ("name", "text", "after"),
    [("a.yaml", ACCELERATE, REPAIRED), ("ds.json", DEEPSPEED, HEALED)],
)
def test_a_repair_keeps_comments_order_and_style(
    tmp_path: Path, name: str, text: str, after: str
) -> None:
    fixed = fix(linted(tmp_path / name, text), VERSIONS)
    assert fixed.text == after
    assert fixed.left == ()
    assert (tmp_path / name).read_text() == text


@pytest.mark.parametrize(
    ("kind", "text"),
    sorted({(case.kind, case.bad) for cases in CASES.values() for case in cases}),
)
def test_after_a_repair_nothing_is_left_to_repair(tmp_path: Path, kind: str, text: str) -> None:
    suffix = "json" if text.lstrip().startswith("{") else "yaml"
    path = tmp_path / f"x.{suffix}"
    path.write_text(text)
    (item,) = lint_files([path], versions=VERSIONS, kind=kind, consumer=False)  # type: ignore[arg-type]
    assert isinstance(item, Linted)
    fixed = fix(item, VERSIONS)
    assert fixed.left == ()
    path.write_text(fixed.text)
    (again,) = lint_files([path], versions=VERSIONS, kind=kind, consumer=False)  # type: ignore[arg-type]
    assert isinstance(again, Linted)
    assert [one for one in again.findings if one.edits] == []


def test_a_key_moves_into_a_block_that_has_to_be_made(tmp_path: Path) -> None:
    text = '{\n"loss_scale_window": 5,\n"hysteresis": 3,\n"steps_per_print": 1\n}'
    fixed = fix(linted(tmp_path / "ds.json", text), VERSIONS)
    assert '"fp16": {"hysteresis": 3, "loss_scale_window": 5}' in fixed.text


def test_the_repaired_file_lies_beside_the_original() -> None:
    assert fixed_path(Path("a/ds.json")) == Path("a/ds.fixed.json")
    assert fixed_path(Path("config")) == Path("config.fixed")
