"""NVML's answers, from a stand-in: the bits are those of nvml.h."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from autotune.probe.control import Control
from autotune.probe.health import clock_mask, throttled

UUID = "3f9d2b0c-0000-1111-2222-333344445555"
GPU = torch.device("cuda", 0)


class NVMLError(Exception):
    """As in pynvml."""


class Nvml:
    """The part of pynvml that is used; one GPU."""

    NVMLError = NVMLError

    def __init__(self, mask: int, *, starts: bool = True) -> None:
        self._mask = mask
        self._starts = starts
        self.sessions = 0

    def nvmlInit(self) -> None:
        if not self._starts:
            raise NVMLError("no driver")
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != f"GPU-{UUID}":
            raise NVMLError("no such GPU")
        return uuid

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        assert handle == f"GPU-{UUID}"
        return self._mask


class OldNvml(Nvml):
    """A binding that knows the new name with a driver that does not."""

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        raise NVMLError("function not found")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self._mask


class TwoRanks:
    """This rank's values, and those of another."""

    def __init__(self, *others: float) -> None:
        self._others = others

    def maximum(self, values: list[float]) -> list[float]:
        return [max(pair) for pair in zip(values, self._others or values, strict=True)]


def install(monkeypatch: pytest.MonkeyPatch, nvml: Nvml | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", cast(Any, nvml))
    properties = SimpleNamespace(uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def reasons(*others: float) -> tuple[str, ...]:
    return throttled(GPU, cast(Control, TwoRanks(*others)))


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0x00, ()),
        (0x01, ()),  # idle
        (0x02, ()),  # clocks set by somebody
        (0x04, ("sw_power_cap",)),
        (0x08, ("hw_slowdown",)),
        (0x10, ()),  # sync boost
        (0x20, ("sw_thermal",)),
        (0x40, ("hw_thermal",)),
        (0x80, ("hw_power_brake",)),
        (0x100, ()),  # display clocks
        (0x48 | 0x01, ("hw_slowdown", "hw_thermal")),
    ],
)
@pytest.mark.parametrize("binding", [Nvml, OldNvml])
def test_each_bit_has_its_name(
    monkeypatch: pytest.MonkeyPatch, binding: type[Nvml], mask: int, names: tuple[str, ...]
) -> None:
    nvml = binding(mask)
    install(monkeypatch, nvml)
    assert reasons() == names
    assert nvml.sessions == 0


def test_what_any_rank_sees_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Nvml(0x04))
    assert reasons(0, 0, 0, 1, 0) == ("sw_power_cap", "hw_thermal")


def test_without_nvml_or_a_driver_or_the_gpu_there_are_no_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, None)  # as if it were not installed
    assert reasons() == ()
    install(monkeypatch, Nvml(0xFF, starts=False))
    assert reasons() == ()
    known = Nvml(0xFF)
    install(monkeypatch, known)
    assert clock_mask("another") == 0
    assert known.sessions == 0


def test_a_cpu_is_never_asked() -> None:
    assert throttled(torch.device("cpu"), cast(Control, None)) == ()
