from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.cluster.claim import Claim
from pbgeval.cluster.journal import DamagedEntryError, ForeignEntryError, Journal
from pbgeval.errors import IncompleteError, OutputError
from pbgeval.storage import writing as files
from pbgeval.storage.writing import System
from pbgeval.worker.sweep import share_rows

LIMITS = [0, -1, 127, 128, -128, -129, 2**15, 2**31 - 1, 2**31, -(2**63), 2**63 - 1]
ARRAYS = st.lists(st.lists(st.sampled_from(LIMITS), max_size=5), max_size=4)


def journal(folder: Path, digest: str = "run", writer: str = "me") -> Journal:
    made = Journal(folder / "journal", digest, writer)
    made.folder.mkdir(parents=True, exist_ok=True)
    return made


@given(arrays=ARRAYS)
def test_what_is_written_is_read(tmp_path_factory, arrays):
    ours = journal(tmp_path_factory.mktemp("run"))
    written = [*(np.array(values, np.int64) for values in arrays), np.array([True, False])]  # marks are integers too

    units, found = ours.read(ours.write(["a", "b ü"], written))
    assert (["a", "b ü"], [*arrays, [1, 0]]) == (units, [array.tolist() for array in found])
    assert {np.dtype(np.int64)} == {array.dtype for array in found}


@pytest.mark.parametrize(
    ("unit", "shares"),
    [
        *((unit, True) for unit in ("1:10-20", "1:0-11", "1:19-30", "1:12-13", "1:0-30")),
        *((unit, False) for unit in ("1:0-10", "1:20-30", "0:10-20", "2:10-20")),
    ],
)
def test_ranges_of_candidates_are_done_already_if_they_share_a_row(unit, shares):
    assert share_rows(["1:10-20"], ["1:50-60", unit]) == share_rows(["1:70-80", "1:10-20"], [unit]) == shares


def test_writers_do_not_meet(tmp_path):
    ours, theirs = journal(tmp_path), journal(tmp_path, writer="other")
    first, second, third = ours.write(["a"], []), theirs.write(["b"], []), ours.write(["c"], [])

    assert sorted([first, second, third]) == ours.entries() == theirs.entries()
    assert (second.startswith("other"), theirs.read(second)[0]) == (True, ["b"])
    ours.remove(first)
    assert sorted([second, third]) == ours.entries()


def test_every_flipped_byte_and_every_truncation_is_seen(tmp_path):
    ours = journal(tmp_path)
    entry = ours.write(["a"], [np.arange(5)])
    whole = (ours.folder / entry).read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]

    for content in (*flipped, *(whole[:at] for at in range(len(whole))), whole + b"x"):
        (ours.folder / entry).write_bytes(content)
        with pytest.raises(DamagedEntryError):
            ours.read(entry)


def test_units_of_another_run_are_refused(tmp_path):
    entry = journal(tmp_path).write(["a"], [])

    with pytest.raises(ForeignEntryError, match="of digest run"):
        journal(tmp_path, digest="other").read(entry)


def test_the_log_has_a_line_per_event(tmp_path):
    ours = journal(tmp_path)
    for event, more in (("start", {}), ("finish", {"edges": 3})):
        ours.log(event, unit="a", **more)

    (path,) = ours.folder.glob("log-*.jsonl")
    first, second = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert first | {"event": "start", "unit": "a", "writer": "me"} == first
    assert (second["edges"], first["time"] <= second["time"], ours.entries()) == (3, True, [])


def test_without_its_lease_a_writer_writes_nothing(tmp_path):
    """What its units were computed from has been removed: arrays that are missing read as empty ones."""
    lease = tmp_path / "scratch" / "lease"
    lease.parent.mkdir()
    lease.touch()
    ours = Journal(tmp_path / "journal", "run", "me", Claim(tmp_path, {}, lease=lease).check)
    ours.folder.mkdir(parents=True, exist_ok=True)
    ours.log("start", unit="a")
    assert [ours.write(["a"], [])] == ours.entries()
    lease.unlink()
    (tmp_path / "journal").rename(tmp_path / "finished")

    for write in (partial(ours.write, ["b"], []), partial(ours.log, "start", unit="c")):
        with pytest.raises(IncompleteError, match="the files that workers share were removed"):
            write()
    assert not (tmp_path / "journal").exists()


def test_a_writer_that_is_held_up_while_it_writes_brings_nothing_back(tmp_path, monkeypatch):
    """It is stopped within a write, and when it goes on another run has taken over and come to its end."""
    lease = tmp_path / "lease"
    ours = Journal(tmp_path / "journal", "run", "me", Claim(tmp_path, {}, lease=lease).check)

    class TakenOver(System):
        def sync(self, descriptor: int) -> None:
            lease.unlink(missing_ok=True)

    lease.touch()
    ours.folder.mkdir(parents=True, exist_ok=True)
    with monkeypatch.context() as patched:
        patched.setattr(files, "system", TakenOver())
        with pytest.raises(IncompleteError, match="were removed"):
            ours.write(["a"], [np.arange(3)])
    ours.folder.rmdir()  # it is empty

    ours.check = lambda: None  # it had looked before it was stopped
    for write in (partial(ours.write, ["a"], [np.arange(3)]), partial(ours.log, "start", unit="a")):
        with pytest.raises(OutputError, match="No such file"):
            write()
    assert not ours.folder.exists()
