"""From a run's records to what people and programs read."""

from autotune.report.result import build_result, find_probe, write_json

__all__ = ["build_result", "find_probe", "write_json"]
