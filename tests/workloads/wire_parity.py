"""Compares, in each rank, what `WireTap` notes with what the profiler saw gloo transfer."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from autotune.backends import backend_of
from autotune.probe.build import build_engine
from autotune.probe.engine import DTYPE_NAMES
from autotune.probe.wire import WireTap
from autotune.probe.workload import Rank, build_task
from autotune.render import render
from autotune.request import Measure, ProbeRequest
from autotune.setup import Setup
from tests.build import TINY, make_setup

PROFILER_NAMES = {"float": torch.float32, "c10::BFloat16": torch.bfloat16, "c10::Half": torch.half}
SETUPS = [
    *(
        make_setup(zero_stage=stage, precision="bf16", grad_comm_dtype="fp32")
        for stage in (1, 2, 3)
    ),
    *(make_setup(zero_stage=stage, precision="bf16", grad_comm_dtype="bf16") for stage in (0, 1)),
    *(
        make_setup(backend="fsdp", precision="bf16", grad_comm_dtype=wire)
        for wire in ("fp32", "bf16", "fp16")
    ),
    *(
        make_setup(backend="ddp", precision="bf16", grad_comm_dtype=wire)
        for wire in ("fp32", "bf16")
    ),
]


def tapped_and_profiled(setup: Setup, place: Rank) -> tuple[Counter[str], Counter[str]]:
    """Reduced elements by dtype of one micro-batch's backward, seen in both ways."""
    backend = backend_of(setup)
    text = render(backend.template, backend.variables(setup), None)
    request = ProbeRequest(setup=setup, rendered=text, workload=TINY, measure=Measure())
    task = build_task(TINY, setup.micro_batch, place)
    engine = build_engine(task, request.setup, request.rendered)
    loss = engine.forward(next(task.batches))
    tap = WireTap()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen, tap:
        engine.backward(loss)
    engine.end_micro_batch()
    engine.close()
    profiled: Counter[str] = Counter()
    for event in seen.events():
        # gloo has no reduce-scatter of its own: it transfers as an all-reduce of the input.
        if event.name == "gloo:all_reduce" and event.input_shapes[0] not in ([], [1]):
            (name,) = event.input_dtypes
            profiled[DTYPE_NAMES[PROFILER_NAMES[name]]] += event.input_shapes[0][0]
    tapped = Counter({item.dtype: item.bytes for item in tap.collectives()})
    for dtype in tapped:
        tapped[dtype] //= 4 if dtype == "fp32" else 2
    return tapped, profiled


def main() -> None:
    dist.init_process_group("gloo")
    place = Rank(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    for setup in SETUPS:
        accumulating = setup.zero_stage < 2
        one = {"micro_batch": 2, "gradient_accumulation": 1} if accumulating else {}
        asked = Setup.from_dict({**setup.to_dict(), **one})
        tapped, profiled = tapped_and_profiled(asked, place)
        assert tapped == profiled, (asked.key, tapped, profiled)
        assert set(tapped) == {asked.grad_comm_dtype}, (asked.key, tapped)
    Path(sys.argv[1], f"rank{place.rank}.done").write_text(str(len(SETUPS)))


if __name__ == "__main__":
    main()
