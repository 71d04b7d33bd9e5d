"""Folders of one run that only its user may enter: made, shared, and removed with what killed runs left."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pbgeval.errors import OutputError
from pbgeval.storage.writing import private_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from pbgeval.storage.writing import private_folder
with private_folder(Path(sys.argv[1]), "none"):
    Path(sys.argv[1], "copy").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_whoever_made_a_folder_removes_it(tmp_path: Path) -> None:
    folder = tmp_path / "ours-1"
    with private_folder(folder, "ours-*") as made:
        (folder / "copy").write_text("of a copy")
        with private_folder(folder, "ours-*") as made_again:
            assert (made, made_again) == (True, False)
        assert ((folder / "copy").read_text(), stat.S_IMODE(os.lstat(folder).st_mode)) == ("of a copy", 0o700)

    assert list(tmp_path.iterdir()) == []


def test_a_fault_removes_the_folder_too(tmp_path: Path) -> None:
    def fill() -> None:
        with private_folder(tmp_path / "ours-1", "ours-*"):
            (tmp_path / "ours-1" / "copy").touch()
            raise OutputError("full")

    with pytest.raises(OutputError, match="full"):
        fill()

    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_run_goes_with_the_next_one_and_one_in_use_stays(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "ours-1"], check=False)
    (tmp_path / "other").mkdir()
    with private_folder(tmp_path / "ours-2", "ours-*"):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "ours-2"]
        (tmp_path / "ours-2" / "copy").touch()
        with private_folder(tmp_path / "ours-3", "ours-*"):
            assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "ours-2", "ours-3"]


def test_a_folder_in_the_making_stays(tmp_path: Path) -> None:
    (tmp_path / "ours-1").mkdir()

    with private_folder(tmp_path / "ours-2", "ours-*"):
        assert (tmp_path / "ours-1").is_dir()


@pytest.mark.parametrize("make", [lambda path: path.symlink_to(path.parent), os.mkfifo, Path.touch])
def test_what_is_no_folder_of_this_user_s_is_refused_and_stays(tmp_path: Path, make: object) -> None:
    make(tmp_path / "ours-1")

    with (
        pytest.raises(OutputError, match="ours-1: this folder belongs to another user"),
        private_folder(tmp_path / "ours-1", "ours-*"),
    ):
        pass

    assert [tmp_path / "ours-1"] == list(tmp_path.iterdir())


def test_where_no_folder_can_be_made_it_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with (
        pytest.raises(OutputError, match="cannot make this folder: Not a directory"),
        private_folder(tmp_path / "file" / "ours-1", "ours-*"),
    ):
        pass
