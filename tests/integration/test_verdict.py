"""Verdicts of real sweeps. Minutes each, so `make test-all` runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.test_sweep import autotune

QUICKSTART = Path(__file__).parents[2] / "sweeps" / "quickstart.yaml"
# Buckets larger than all gradients: six names for one way to train.
EQUAL = """
version: 1
name: equal
workload:
  gpt: {layers: 2, width: 256, heads: 4, vocab: 1024, sequence: 128}
  micro_batch: 2
  gradient_accumulation: 1
launch: {local: {ranks: 2}}
space:
  backend: deepspeed
  precision: fp32
  grad_comm_dtype: fp32
  zero_stage: 1
  bucket_bytes: [25e6, 26e6, 27e6, 28e6, 29e6, 30e6]
baseline: {bucket_bytes: 25e6}
budget: {minutes: 3}
measure: {warm_up_steps: 3, warm_up_cap: 8, timed_steps: 16, end_to_end_steps: 4}
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", range(3))
def test_six_names_for_one_setup_are_never_claimed_to_differ(tmp_path: Path, run: int) -> None:
    (tmp_path / "equal.yaml").write_text(EQUAL)
    done = autotune("sweep", "equal.yaml", "--json", folder=tmp_path)
    result = json.loads(done.stdout)
    assert result["verdict"] in ("keep-baseline", "inconclusive")
    assert done.returncode == (0 if result["verdict"] == "keep-baseline" else 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quickstart_confirms_bf16_over_fp32(tmp_path: Path) -> None:
    done = autotune("sweep", str(QUICKSTART), "--json", folder=tmp_path)
    result = json.loads(done.stdout)
    assert (done.returncode, result["verdict"]) == (0, "confirmed")
    assert ".bf16." in result["winner"]
    assert result["interval"][0] > 1.01
