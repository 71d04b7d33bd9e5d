"""Rows that many processes write into one HDF5 file: what is written is read, and nothing else is."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.errors import OutputError, StorageError
from pbgeval.notation import ENDS, Bucket, Side
from pbgeval.storage.row_files import (
    RANK_COLUMNS,
    QueryFile,
    create_query_file,
    find_ranks,
    open_query_file,
    query_path,
)
from pbgeval.storage.writing import System
from tests.examples import examples
from tests.kit.held_up import full_disk
from tests.kit.refusals import fault_of
from tests.saved_ranks import read_ranks

BUCKET = Bucket(1, 20)


def create(folder: Path, num_edges: int = 10, sides: tuple[Side, ...] = tuple(ENDS)) -> QueryFile:
    return create_query_file(folder, "ranks", 2, BUCKET, num_edges, sides, "abc")


def columns_of(rows: np.ndarray, side: Side) -> dict[str, np.ndarray]:
    """Values that say where they belong; some negative or as large as may be."""
    values = {name: 1000 * rows + 10 * index + side.value for index, name in enumerate(RANK_COLUMNS)}
    values["tied"] = np.where(rows % 2 == 0, np.iinfo(np.int64).max, -rows)
    return values


def test_a_new_file_says_of_every_query_that_it_was_not_ranked(tmp_path: Path) -> None:
    path = create(tmp_path).path
    ranks = read_ranks(tmp_path, 2, BUCKET).columns

    assert tmp_path / "ranks" / "2" / "ranks_1_20.h5" == path == query_path(tmp_path, "ranks", 2, BUCKET)
    assert os.listdir(path.parent) == ["ranks_1_20.h5"]
    assert {
        side: {name: (of.dtype, of.tolist()) for name, of in columns.items()} for side, columns in ranks.items()
    } == {side: {name: (np.dtype(np.int64), [0] * 10) for name in RANK_COLUMNS} for side in ENDS}


def test_the_file_is_plain_hdf5_in_one_piece_per_dataset(tmp_path: Path) -> None:
    file, rows = create(tmp_path, num_edges=3, sides=(Side.RHS,)), columns_of(np.arange(3), Side.RHS)
    file.write_side(Side.RHS, 0, rows)

    with h5py.File(file.path) as read:
        tail = {name: (of.chunks, of[:].tolist()) for name, of in read["tail"].items()}
        attributes = [read.attrs[name] for name in ("format_version", "num_rows", "digest")]
        assert (list(read), attributes) == (["tail"], [1, 3, "abc"])
    assert tail == {name: (None, of.tolist()) for name, of in rows.items()}


ROWS = st.sets(st.integers(0, 29), max_size=30).map(lambda rows: np.array(sorted(rows), np.int64))


@settings(max_examples=examples(30))
@given(writes=st.lists(st.tuples(st.sampled_from(ENDS), ROWS), max_size=6))
def test_rows_written_in_any_order_are_read_and_others_stay_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[Side, np.ndarray]]
) -> None:
    folder = tmp_path_factory.mktemp("r")
    file = create(folder, num_edges=30)
    expected = {(side, name): [0] * 30 for side in ENDS for name in RANK_COLUMNS}
    for side, rows in writes:
        values = columns_of(rows, side)
        file.write_side(side, rows, values)
        for name in RANK_COLUMNS:
            for row, value in zip(rows.tolist(), values[name].tolist(), strict=True):
                expected[side, name][row] = value

    actual = read_ranks(folder, 2, BUCKET).columns
    assert {(side, name): actual[side][name].tolist() for side in ENDS for name in RANK_COLUMNS} == expected
    for side in ENDS:
        part = open_query_file(folder, "ranks", 2, BUCKET).read_side(side, 7, 19)
        assert all(expected[side, name][7:19] == part[name].tolist() for name in RANK_COLUMNS)
        assert [0] * len(RANK_COLUMNS) == [len(values) for values in file.read_side(side, 30, 30).values()]


def test_a_file_is_found_again_with_all_it_takes_to_write(tmp_path: Path) -> None:
    made = create(tmp_path, sides=(Side.LHS,))
    opened = open_query_file(tmp_path, "ranks", 2, BUCKET)

    assert made == opened == pickle.loads(pickle.dumps(made))
    assert (opened.sides, opened.num_rows, opened.digest) == ((Side.LHS,), 10, "abc")


def test_files_of_all_paths_and_buckets_are_found_in_order(tmp_path: Path) -> None:
    assert find_ranks(tmp_path) == []
    places = [(0, Bucket(0, 0)), (0, Bucket(2, 1)), (0, Bucket(10, 0)), (10, Bucket(0, 0))]
    for path_index, bucket in reversed(places):
        create_query_file(tmp_path, "ranks", path_index, bucket, 1, [Side.LHS], "abc")
    (tmp_path / "ranks" / "0" / "ranks_x_1.h5").touch()

    assert places == find_ranks(tmp_path)


GOOD = columns_of(np.arange(3), Side.LHS)


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        *((rows, GOOD) for rows in (-1, 8, *map(np.array, ([0, 1], [0, 0, 1], [2, 1, 0], [0, 1, 10])))),
        (0, {"better": GOOD["better"]}),
        (0, GOOD | {"tied": GOOD["tied"][:2]}),
        (0, GOOD | {"tied": GOOD["tied"][:, None]}),
        (0, GOOD | {"tied": GOOD["tied"].astype(np.float64)}),
    ],
)
def test_what_does_not_fit_the_file_is_refused(tmp_path: Path, rows: object, values: dict[str, np.ndarray]) -> None:
    file = create(tmp_path)
    with pytest.raises(AssertionError):
        file.write_side(Side.LHS, rows, values)  # type: ignore[arg-type]

    assert file.read_side(Side.LHS, 0, 10)["better"].tolist() == [0] * 10


def test_a_file_that_cannot_be_written_is_the_users_fault_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "ranks").write_text("in the way")
    file = create(tmp_path / "other")
    file.path.unlink()

    assert "ranks_1_20.h5: cannot write this file: " in fault_of(lambda: create(tmp_path), OutputError)
    for action in (lambda: file.write_side(Side.LHS, 0, columns_of(np.arange(3), Side.LHS)), file.sync):
        assert ": cannot write this file: No such file or directory" in fault_of(action, OutputError)


def test_a_file_that_has_become_shorter_or_has_gone_since_it_was_opened_is_one_line(tmp_path: Path) -> None:
    create(tmp_path)
    file = open_query_file(tmp_path, "ranks", 2, BUCKET)
    last = max(file.layouts, key=lambda name: file.layouts[name].offset)
    os.truncate(file.path, file.layouts[last].offset + 9 * 8)

    assert file.read([last], 0, 9)[last].tolist() == [0] * 9
    fault = fault_of(lambda: file.read([last], 0, 10), StorageError)
    assert fault == f"{file.path}: the file is truncated; evaluate again"
    file.path.unlink()
    fault = fault_of(lambda: file.read([last], 0, 9), StorageError)
    assert fault == f"{file.path}: cannot read this file: No such file or directory; evaluate again"


def test_a_full_disk_is_found_and_leaves_no_half_made_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = create(tmp_path)
    for name in ("write", "write_at"):
        monkeypatch.setattr(System, name, lambda *_: full_disk())

    for act in (
        lambda: file.write_side(Side.LHS, 0, columns_of(np.arange(10), Side.LHS)),
        lambda: create(tmp_path / "new"),
    ):
        assert "ranks_1_20.h5: cannot write this file: No space left on device; make room" in fault_of(act, OutputError)
    assert os.listdir(tmp_path / "new" / "ranks" / "2") == []


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda file: file.attrs.modify("format_version", np.int64(2)), "attribute format_version: expected 1"),
        (lambda file: file.attrs.pop("digest"), "expected an attribute digest, found None"),
        (lambda file: file.attrs.modify("num_rows", np.int64(9)), "expected int64 of shape (9,)"),
        (lambda file: file.pop("tail/tied"), "expected a dataset tail/tied, found head, tail"),
        (lambda file: [file.pop("head"), file.pop("tail")], "no group head, tail or relation"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused_with_its_name(
    tmp_path: Path, damage: Callable[[h5py.File], object], fault: str
) -> None:
    with h5py.File(create(tmp_path).path, "r+") as file:
        damage(file)

    assert fault in fault_of(lambda: open_query_file(tmp_path, "ranks", 2, BUCKET))
