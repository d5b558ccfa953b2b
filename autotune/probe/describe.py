"""What this machine is and can do, asked of torch and DeepSpeed instead of assumed."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from autotune import __version__

CPU_INFO = Path("/proc/cpuinfo")


def describe() -> dict[str, Any]:
    """Versions, devices and capabilities, as JSON types."""
    cuda = torch.cuda.is_available()
    return {
        "autotune": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "deepspeed": _deepspeed_version(),
        "device": "cuda" if cuda else "cpu",
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "nccl": _nccl_version() if cuda else None,
        "cpu": _cpu_name(),
        "cores": _cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "bf16": _bf16(cuda),
        "fp16": _fp16(cuda),
        "tf32": cuda and torch.cuda.get_device_capability() >= (8, 0),
        "compiler": shutil.which("c++") or shutil.which("g++"),
        "interfaces": _interfaces(),
        "hostname": socket.gethostname(),
    }


def _deepspeed_version() -> str:
    import deepspeed

    return str(deepspeed.__version__)


def _nccl_version() -> str | None:
    if not dist.is_nccl_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _bf16(cuda: bool) -> str:
    """``native``, ``emulated`` (a T4 converts to fp32 and back) or ``none``."""
    if not cuda:
        return "native" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "emulated"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "native"
    return "emulated" if torch.cuda.is_bf16_supported() else "none"


def _fp16(cuda: bool) -> str:
    """As `_bf16`. On CPU DeepSpeed refuses fp16 unless oneDNN has kernels for it."""
    if cuda:
        return "native" if torch.cuda.get_device_capability() >= (5, 3) else "none"
    return "native" if torch.ops.mkldnn._is_mkldnn_fp16_supported() else "none"


def _cores() -> int:
    """Cores this process may use: fewer than the machine has, under Slurm or in a container."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    if not CPU_INFO.exists():
        return platform.processor()
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _interfaces() -> list[str]:
    """Network interfaces that are up and have an IPv4 address."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return sorted(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if name in up and any(address.family == socket.AF_INET for address in addresses)
    )
