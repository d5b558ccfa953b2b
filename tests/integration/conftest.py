"""What tests with real workers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.launch import Launch, LocalLauncher, Machine
from autotune.launch.describe import worker_environment


@pytest.fixture(scope="module")
def warm(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Workers on two ranks that serve all tests of a module."""
    folder = tmp_path_factory.mktemp("launches")
    started = LocalLauncher(2, worker_environment(machine, 2), folder).start(0)
    yield started
    started.stop()
