import os
from pathlib import Path

import pytest

from autotune.launch.extensions import BUILD_SECONDS, VARIABLE, ExtensionCache, default_folder


def leave_lock(folder: Path) -> Path:
    """What a worker leaves that is killed while torch compiles."""
    lock = folder / "some_op" / "lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    return lock


def test_the_lock_of_a_killed_build_is_removed_before_the_next_launch(tmp_path: Path) -> None:
    lock = leave_lock(tmp_path)
    cache = ExtensionCache(tmp_path)
    cache.enter()
    assert not lock.exists()
    cache.leave()


def test_a_lock_is_left_alone_while_another_launch_lives(tmp_path: Path) -> None:
    other, mine = ExtensionCache(tmp_path), ExtensionCache(tmp_path)
    other.enter()
    lock = leave_lock(tmp_path)
    mine.enter()
    assert lock.exists()
    mine.leave()
    other.leave()
    mine.enter()
    assert not lock.exists()
    mine.leave()


def test_a_lock_that_is_too_old_for_a_build_goes_even_then(tmp_path: Path) -> None:
    other, mine = ExtensionCache(tmp_path), ExtensionCache(tmp_path)
    other.enter()
    lock = leave_lock(tmp_path)
    long_ago = lock.stat().st_mtime - 2 * BUILD_SECONDS
    os.utime(lock, (long_ago, long_ago))
    mine.enter()
    assert not lock.exists()
    mine.leave()
    other.leave()


def test_leaving_twice_does_no_harm(tmp_path: Path) -> None:
    cache = ExtensionCache(tmp_path)
    cache.enter()
    cache.leave()
    cache.leave()
    lock = leave_lock(tmp_path)
    cache.enter()
    assert not lock.exists()
    cache.leave()


def test_the_cache_is_apart_from_the_users_own_but_in_the_place_they_chose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert default_folder().parent == tmp_path
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder().parent == tmp_path / "torch_extensions"
