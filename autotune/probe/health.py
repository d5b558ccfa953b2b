"""Whether a GPU lowered its clocks, as NVML says."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

import torch

from autotune.probe.control import Control

# Bits of nvml.h. Idle clocks and clocks that somebody has set are no trouble.
REASONS: Mapping[int, str] = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
# The same question under its new name and under the one that old drivers know.
QUESTIONS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)


def throttled(device: torch.device, control: Control) -> tuple[str, ...]:
    """Why any rank's GPU runs below its clocks now; nothing on CPU or without an answer."""
    if device.type != "cuda":
        return ()
    mask = clock_mask(str(torch.cuda.get_device_properties(device).uuid))
    anywhere = control.maximum([float(bool(mask & bit)) for bit in REASONS])
    return tuple(name for name, seen in zip(REASONS.values(), anywhere, strict=True) if seen)


def clock_mask(uuid: str) -> int:
    """NVML's bits for the GPU with this uuid; 0 when NVML is absent or does not answer.

    The uuid names the same GPU whatever CUDA_VISIBLE_DEVICES says; NVML's index does not.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return 0
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return 0
    try:
        return _ask(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except nvml.NVMLError:
        return 0
    finally:
        nvml.nvmlShutdown()


def _ask(nvml: Any, handle: Any) -> int:
    for question in QUESTIONS:
        with contextlib.suppress(AttributeError, nvml.NVMLError):
            return int(getattr(nvml, question)(handle))
    return 0
