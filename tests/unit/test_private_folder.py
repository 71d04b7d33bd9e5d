"""Folders of one run that only its user may enter: made, shared, and removed with what killed runs left."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pbgeval.errors import OutputError
from pbgeval.storage.writing import private_folder
from tests.kit.refusals import fault_of

KILLED = """
import os, signal, sys
from pathlib import Path
from pbgeval.storage.writing import private_folder
with private_folder(Path(sys.argv[1]), "none"):
    Path(sys.argv[1], "copy").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_process_that_made_a_folder_removes_it_after_a_fault(tmp_path: Path) -> None:
    folder = tmp_path / "ours-1"

    def use() -> None:
        with private_folder(folder, "ours-*") as made:
            (folder / "copy").write_text("of a copy")
            with private_folder(folder, "ours-*") as made_again:
                assert (made, made_again) == (True, False)
            assert ((folder / "copy").read_text(), stat.S_IMODE(os.lstat(folder).st_mode)) == ("of a copy", 0o700)
            raise OutputError("full")

    assert (fault_of(use), list(tmp_path.iterdir())) == ("full", [])


def test_the_folder_of_a_killed_run_goes_with_the_next_one_and_one_in_use_or_in_the_making_stays(
    tmp_path: Path,
) -> None:
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "ours-1"], check=False)
    for name in ("other", "ours-4"):
        (tmp_path / name).mkdir()
    with private_folder(tmp_path / "ours-2", "ours-*"):
        (tmp_path / "ours-2" / "copy").touch()
        with private_folder(tmp_path / "ours-3", "ours-*"):
            assert {path.name for path in tmp_path.iterdir()} == {"other", "ours-2", "ours-3", "ours-4"}


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        *((make, "ours-1: this folder belongs to another user") for make in (os.mkfifo, Path.touch)),
        (lambda path: path.symlink_to(path.parent), "ours-1: this folder belongs to another user"),
        (lambda path: path.parent.touch(), "cannot make this folder: Not a directory"),
    ],
)
def test_what_is_no_folder_of_this_user_s_is_refused_and_stays(
    tmp_path: Path, make: Callable[[Path], object], fault: str
) -> None:
    folder = tmp_path / "file" / "ours-1" if "cannot" in fault else tmp_path / "ours-1"
    make(folder)
    before = list(tmp_path.iterdir())

    with pytest.raises(OutputError, match=fault), private_folder(folder, "ours-*"):
        pass

    assert before == list(tmp_path.iterdir())
