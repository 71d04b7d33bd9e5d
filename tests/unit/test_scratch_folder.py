from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.errors import OutputError
from pbgeval.storage.rows import ScratchRows
from pbgeval.storage.writing import ScratchFolder, remove_files, remove_scratch
from tests.examples import examples

arrays = st.lists(st.integers(-(2**62), 2**62), max_size=5)


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["pairs-LHS-1", "pairs-LHS-11"]), arrays), max_size=10))
def test_what_workers_append_is_read_in_their_order(appended):
    """Worker 10 comes after worker 2, and a name is not mixed up with one that it begins."""
    with tempfile.TemporaryDirectory() as folder:
        for worker, name, values in appended:
            ScratchFolder(Path(folder), worker, 12).append(name, np.array(values, np.int64))
        in_order = sorted(appended, key=lambda part: part[0])
        for name in ("pairs-LHS-1", "pairs-LHS-11", "nobody's"):
            expected = [value for _, of, values in in_order if of == name for value in values]
            assert ScratchFolder(Path(folder), 0, 12).read(name, np.int64).tolist() == expected


def test_columns_of_two_dimensions_are_written_in_the_order_of_rows(tmp_path):
    scratch = ScratchFolder(tmp_path, 0, 1)
    scratch.append("table", np.arange(6, dtype=np.int64).reshape(2, 3).T)

    assert scratch.read("table", np.int64).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    ("name", "fault"), [("removed", "No such file or directory"), ("file/scratch", "Not a directory")]
)
def test_a_folder_that_was_removed_stays_away_and_one_that_cannot_be_written_is_the_users_fault(tmp_path, name, fault):
    (tmp_path / "file").write_text("")
    scratch = ScratchFolder(tmp_path / name, 0, 1)
    rows = ScratchRows(scratch, "v", (3, 1), torch.float32)

    for action in (
        lambda: scratch.append("values", np.arange(3)),
        rows.create,
        lambda: rows.write(0, torch.zeros((3, 1))),
    ):
        with pytest.raises(OutputError, match=f"scratch file: {fault}"):
            action()
    assert not scratch.path.exists()


def test_scratch_folders_go_at_once(tmp_path, monkeypatch):
    """A concurrent reader sees all arrays or none: a missing part would be read as one that was never written."""
    group, earlier = "0123456789ab", "ba9876543210.removed"
    for name in (group, earlier, "notes"):
        (tmp_path / name).mkdir()
        ScratchFolder(tmp_path / name, 0, 1).append("keys", np.arange(3))
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr("pbgeval.storage.writing.shutil.rmtree", lambda folder: seen.append(folder.name))
        remove_scratch(tmp_path)
    remove_scratch(tmp_path)

    left = [path.name for path in tmp_path.iterdir()]
    assert (sorted(seen), left) == ([f"{group}.removed", earlier], ["notes"])  # nothing of ours
    remove_files(tmp_path, ["notes/keys.0"])
    for _ in range(2):
        remove_scratch(tmp_path)
    assert not tmp_path.exists()
