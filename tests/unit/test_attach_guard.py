"""The audit hook that keeps the user's files as they are."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.launch.scratch import make_scratch
from autotune.probe.attach import guard as module
from autotune.probe.attach.guard import Guard
from autotune.probe.attach.places import Places, find_places

GUARDS: list[Guard] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for guard in GUARDS:
        if event in guard.events:
            guard.audit(event, arguments)


@pytest.fixture(scope="module")
def hook() -> None:
    """An audit hook cannot be taken away again; this one does nothing without a guard."""
    sys.addaudithook(_audit)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / "many").mkdir(parents=True)
    (folder / "log.txt").write_text("old\n")
    (folder / "data.bin").write_bytes(b"12345678")
    (folder / ".cache").mkdir()
    return folder


@pytest.fixture
def guard(
    hook: None, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Guard]:
    launch = tmp_path / "launch"
    scratch = launch / "scratch"
    make_scratch(home, scratch)
    (scratch / "many").rmdir()
    (scratch / "many").symlink_to(home / "many")
    monkeypatch.chdir(scratch)
    monkeypatch.setenv("HF_HOME", str(home / ".cache"))
    made = Guard(find_places(home, scratch, launch), launch)
    GUARDS.append(made)
    yield made
    GUARDS.clear()


def test_appending_to_a_link_changes_a_copy(guard: Guard, home: Path) -> None:
    with Path("log.txt").open("a") as log:
        log.write("new\n")
    assert Path("log.txt").read_text() == "old\nnew\n"
    assert (home / "log.txt").read_text() == "old\n"


@pytest.mark.parametrize("mode", ["w", "x", "wb+"])
def test_writing_anew_replaces_the_link(guard: Guard, home: Path, mode: str) -> None:
    with Path("log.txt").open(mode) as log:
        assert log.tell() == 0
    assert not Path("log.txt").is_symlink()
    assert (home / "log.txt").read_text() == "old\n"


def test_changing_in_place_changes_a_copy(guard: Guard, home: Path) -> None:
    os.truncate("data.bin", 2)
    Path("log.txt").chmod(0o600)
    with sqlite3.connect("data.bin"):
        pass
    assert Path("data.bin").read_bytes() == b"12"
    assert (home / "data.bin").read_bytes() == b"12345678"
    assert (home / "log.txt").stat().st_mode & 0o777 != 0o600


def test_reading_leaves_the_link(guard: Guard) -> None:
    assert Path("log.txt").read_text() == "old\n"
    assert Path("log.txt").is_symlink()


def test_a_second_name_for_a_link_is_one_for_a_copy(guard: Guard, home: Path) -> None:
    Path("other.txt").hardlink_to("log.txt")
    Path("other.txt").write_text("changed")
    assert (home / "log.txt").read_text() == "old\n"


def test_a_file_that_is_too_large_to_copy_is_not_changed(
    guard: Guard, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_COPIED", 4)
    with pytest.raises(UsageError, match=r"opens data\.bin to change it.*too much"):
        Path("data.bin").open("r+b").close()
    Path("data.bin").write_bytes(b"")  # nothing has to be kept
    assert (home / "data.bin").read_bytes() == b"12345678"


def test_removing_and_renaming_links_is_free(guard: Guard, home: Path) -> None:
    Path("log.txt").rename("renamed.txt")
    Path("data.bin").unlink()
    assert (home / "log.txt").exists()
    assert (home / "data.bin").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda home: (home / "new.txt").write_text("x"),
        lambda home: (home / "log.txt").open("r+").close(),
        lambda home: (home / "log.txt").unlink(),
        lambda home: (home / "log.txt").rename("mine.txt"),
        lambda home: Path("log.txt").rename(home / "other.txt"),
        lambda home: (home / "new").mkdir(),
        lambda home: os.truncate(home / "data.bin", 0),
        lambda home: Path("many/new.txt").write_text("x"),
    ],
)
def test_changing_the_users_own_files_is_refused(guard: Guard, home: Path, change: Any) -> None:
    before = {path: path.stat().st_size for path in home.rglob("*")}
    with pytest.raises(UsageError, match=r"must not change your files.*output_dir"):
        change(home)
    assert guard.refused is not None
    assert {path: path.stat().st_size for path in home.rglob("*")} == before


def test_making_a_folder_that_is_there_changes_nothing(guard: Guard, home: Path) -> None:
    (home / "many").mkdir(parents=True, exist_ok=True)
    assert guard.refused is None


def test_caches_below_the_users_folder_may_be_written(guard: Guard, home: Path) -> None:
    (home / ".cache" / "model").write_text("x")
    assert guard.refused is None


def test_names_that_start_from_an_open_folder_are_found(guard: Guard, home: Path) -> None:
    folder = os.open(home, os.O_RDONLY)
    try:
        with pytest.raises(UsageError):
            os.unlink("log.txt", dir_fd=folder)
    finally:
        os.close(folder)
    assert (home / "log.txt").exists()


def test_the_note_says_what_went_into_the_scratch_folder_and_what_elsewhere(
    guard: Guard, tmp_path: Path
) -> None:
    places = guard._places
    guard._places = Places(
        home=places.home, scratch=places.scratch, launch=places.launch, shared=("/dev",)
    )
    outside = tmp_path / "elsewhere.txt"
    Path("log.txt").write_text("new")
    Path("log.txt").write_text("again")
    outside.write_text("x")
    Path("/dev/null").write_text("x")
    guard.save()
    note = json.loads((tmp_path / "launch" / "redirected.json").read_text())
    assert note == {"redirected": ["log.txt"], "outside": [str(outside)]}


def test_each_list_of_the_note_has_an_end(guard: Guard) -> None:
    for number in range(30):
        Path(f"{number}.txt").touch()
    assert len(guard._redirected) == 20


def test_writers_that_open_their_file_outside_python_are_told_of(guard: Guard, home: Path) -> None:
    def save(what: object, f: str) -> str:
        return Path(f).read_text() if Path(f).exists() else "gone"

    library: Any = SimpleNamespace(save=save)
    guard.protect_torch_save(library)
    assert library.save([], "log.txt") == "gone"
    assert library.save([], f="data.bin") == "gone"
    assert (home / "log.txt").exists()
