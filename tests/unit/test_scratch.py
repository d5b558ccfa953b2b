"""The mirror of the user's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.launch import scratch as module
from autotune.launch.scratch import make_scratch, scratch_environment


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    for name in ("train.py", "data/a.txt", "data/deep/b.txt", ".git/config", "lib/__pycache__/x"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_folders_are_real_and_files_are_links(home: Path, tmp_path: Path) -> None:
    made = make_scratch(home, tmp_path / "scratch")
    assert tree(made.folder) == {
        *("train.py", "data", "data/a.txt", "data/deep", "data/deep/b.txt", "lib")
    }
    assert (made.folder / "data/deep/b.txt").readlink() == home / "data/deep/b.txt"
    assert not (made.folder / "data").is_symlink()
    assert made.not_redirected == ()


def test_what_is_new_in_a_mirrored_folder_is_not_in_the_users(home: Path, tmp_path: Path) -> None:
    before = tree(home)
    made = make_scratch(home, tmp_path / "scratch")
    (made.folder / "data" / "new.txt").write_text("new")
    (made.folder / "train.py").unlink()
    assert tree(home) == before


def test_the_folder_that_holds_the_scratch_folder_is_left_out(home: Path) -> None:
    made = make_scratch(home, home / "runs" / "mine" / "scratch")
    assert "runs" not in tree(made.folder)
    assert "train.py" in tree(made.folder)


def test_a_virtual_environment_is_left_out_whatever_its_name(home: Path, tmp_path: Path) -> None:
    (home / "myenv").mkdir()
    (home / "myenv" / "pyvenv.cfg").write_text("home = /usr/bin")
    assert "myenv" not in tree(make_scratch(home, tmp_path / "scratch").folder)


def test_a_folder_with_too_many_entries_is_one_link_and_its_neighbours_are_not(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ENTRIES", 20)
    (home / "images").mkdir()
    for number in range(30):
        (home / "images" / str(number)).touch()
    made = make_scratch(home, tmp_path / "scratch")
    assert made.not_redirected == ("images",)
    assert (made.folder / "images").readlink() == home / "images"
    assert not (made.folder / "lib").is_symlink()


def test_the_top_is_mirrored_even_with_too_many_entries(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ENTRIES", 2)
    made = make_scratch(home, tmp_path / "scratch")
    assert not made.folder.is_symlink()
    assert (made.folder / "train.py").is_symlink()
    assert made.not_redirected == ("data", "lib")


def test_a_linked_folder_stays_a_link_and_is_told(home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (home / "big").symlink_to(tmp_path / "elsewhere")
    made = make_scratch(home, tmp_path / "scratch")
    assert made.not_redirected == ("big",)
    assert (made.folder / "big").resolve() == tmp_path / "elsewhere"


def test_trackers_stay_off_the_network_and_write_into_the_scratch_folder(tmp_path: Path) -> None:
    environment = scratch_environment(tmp_path)
    assert environment["WANDB_MODE"] == "offline"
    places = [environment[name] for name in environment if name != "WANDB_MODE"]
    assert len(places) == 3
    assert all(str(tmp_path) in place for place in places)
