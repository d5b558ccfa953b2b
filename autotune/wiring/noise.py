"""The noise of this machine, for ``autotune doctor --noise``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.events import Event
from autotune.search import Store
from autotune.sweep import Bench, measure_noise
from autotune.wiring.plan import make_launcher, make_plan

# A small model; a sweep file of the user's own says more about their workload.
WORKLOAD = """
version: 1
name: noise
workload:
  gpt: {layers: 2, width: 256, heads: 4, vocab: 1024, sequence: 128}
  micro_batch: 2
  gradient_accumulation: 1
space: {backend: deepspeed, precision: fp32, zero_stage: 1, bucket_bytes: 25e6}
measure: {warm_up_steps: 3, warm_up_cap: 5, timed_steps: 6, end_to_end_steps: 3}
"""


def describe_noise(
    file: Path | None, launches: int, emit: Callable[[Event], None]
) -> dict[str, Any]:
    """Measures the baseline of a sweep file, or of a small model, against itself.

    Raises:
        UsageError: The file is wrong.
        EnvironmentFailedError: The baseline cannot be measured.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-noise-") as folder:
        if file is None:
            file = Path(folder) / "noise.yaml"
            file.write_text(WORKLOAD, encoding="utf-8")
        made = make_plan(file)
        bench = Bench(made.plan, Store(None, create=True), make_launcher(made, Path(folder)), emit)
        noise = asdict(measure_noise(bench, launches))
    return {"baseline": made.plan.baseline.key, "ranks": made.ranks, **noise}
