"""From a run's records to what people and programs read."""

from autotune.report.result import build_result, find_probe, write_json
from autotune.report.warning import Warning, WarningKind

__all__ = ["Warning", "WarningKind", "build_result", "find_probe", "write_json"]
