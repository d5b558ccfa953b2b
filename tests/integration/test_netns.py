"""Two network namespaces joined by a slow link, as two hosts. Needs root and iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from autotune.launch import LocalLauncher, Machine
from autotune.launch.describe import worker_environment
from autotune.request import Measure
from autotune.workload import Gpt, Workload
from tests.build import make_setup
from tests.conftest import request_for

MEASURE = Measure(warm_up_steps=2, warm_up_cap=4, timed_steps=6, end_to_end_steps=1)
MODEL = Gpt(
    layers=2, width=256, heads=4, kv_heads=4, vocab=2048, sequence=32, mlp_ratio=4.0, style="llama"
)
WORKLOAD = Workload(model=MODEL, micro_batch=1, gradient_accumulation=1)
RATE = "400mbit"

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
        reason="needs root, ip and tc",
    ),
]


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two namespaces with the addresses 10.99.0.1 and 10.99.0.2."""
    names = (f"autotune-a-{os.getpid()}", f"autotune-b-{os.getpid()}")
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", names[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
        run("ip", "-n", names[0], "link", "set", "veth1", "netns", names[1])
        for index, name in enumerate(names):
            device = f"veth{index}"
            run("ip", "-n", name, "address", "add", f"10.99.0.{index + 1}/24", "dev", device)
            run("ip", "-n", name, "link", "set", device, "up")
            limit = ("rate", RATE, "burst", "64kb", "latency", "50ms")
            run("tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf", *limit)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def torchrun(namespace: str, rank: int) -> tuple[str, ...]:
    return (
        *("ip", "netns", "exec", namespace, "env", f"GLOO_SOCKET_IFNAME=veth{rank}"),
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
        *("--node-rank", str(rank), "--master-addr", "10.99.0.1", "--master-port", "29511"),
    )


@pytest.mark.parametrize("backend", ["deepspeed", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_on_a_400_mbit_link_bf16_gradients_are_over_1_6_times_faster_than_fp32_ones(
    hosts: tuple[str, str], machine: Machine, tmp_path: Path, backend: str
) -> None:
    launcher = LocalLauncher(
        ranks=2,
        environment=worker_environment(machine, 2),
        folder=tmp_path,
        commands=tuple(torchrun(name, rank) for rank, name in enumerate(hosts)),
    )
    setup = make_setup(
        backend=backend, zero_stage=2, precision="bf16", micro_batch=1, gradient_accumulation=1
    )
    launch = launcher.start(0)
    backward = {}
    try:
        for wire in ("bf16", "fp32", "bf16", "fp32"):
            asked = replace(setup, grad_comm_dtype=wire)
            outcome = launch.probe(request_for(asked, workload=WORKLOAD, measure=MEASURE), 120)
            assert outcome.kind == "ok", (outcome.reason, outcome.log)
            assert outcome.measurement is not None
            assert {item.dtype for item in outcome.measurement.wire} == {wire}
            backward[wire] = median(outcome.measurement.backward_seconds)
    finally:
        launch.stop()
    assert backward["fp32"] / backward["bf16"] > 1.6
