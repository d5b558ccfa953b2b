"""Peak and resident memory of this rank."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

import psutil
import torch

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): resets the peak resident set size


def reset_peak(device: torch.device) -> None:
    """Starts a new measurement of the peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif CLEAR_REFS.exists():
        CLEAR_REFS.write_text(RESET_PEAK)


def peak_bytes(device: torch.device) -> int:
    """Peak since `reset_peak`: allocated by torch on CUDA, resident of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if not STATUS.exists():
        return resident_bytes()
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def release(device: torch.device) -> None:
    """Returns to the device and the system what no object holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        # glibc keeps freed pages in its arenas; a warm launch would look as if it leaked.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
