"""Sweep files that cannot be opened or are no text."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.spec import read_spec
from tests.unit.test_spec_errors import SOUND, error_of


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_spec(tmp_path / "none.yaml")
    assert str(caught.value) == (
        f"{tmp_path / 'none.yaml'}: cannot be read (No such file or directory); "
        "give the path of a sweep file"
    )


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read \(Is a directory\); give the path"):
        read_spec(tmp_path)


def test_a_path_that_no_system_can_open_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot be read \(embedded null byte\); give the path"):
        read_spec(Path("a\0b.yaml"))


def test_a_file_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, mode: str) -> None:  # root may read everything, so no chmod
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UsageError, match=r"cannot be read \(Permission denied\)"):
        read_spec(tmp_path / "mine.yaml")


def test_a_file_beyond_a_megabyte_is_refused(tmp_path: Path) -> None:
    error = error_of(tmp_path, SOUND + "#" * 1_000_000)
    assert error == "mine.yaml: is larger than 1000000 bytes; give a sweep file"
