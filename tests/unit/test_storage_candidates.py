"""Given candidates: read as they are listed, and refused where they are not those of the edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.errors import DataError, StorageError
from pbgeval.notation import Bucket, Side
from pbgeval.storage.candidates import CandidateFile, candidates_path, find_candidate_files
from pbgeval.storage.edges import BucketFile, find_buckets
from tests.examples import examples
from tests.kit.pbg_files import LAYOUTS, write_edges
from tests.kit.refusals import fault_of

BUCKET = Bucket(0, 1)
SIZES = [[4, 9], [5]]  # a type of two partitions, and one of one


def edges_of(folder: Path, num_edges: int = 3, bucket: Bucket = BUCKET) -> dict[Bucket, BucketFile]:
    write_edges(folder, bucket, [0] * num_edges, [0] * num_edges, [0] * num_edges)
    return find_buckets(folder, 2, 2)


def write(folder: Path, bucket: Bucket = BUCKET, layout: str = "contiguous", **datasets: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = candidates_path(folder, bucket)
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            array = np.asarray(values)
            options = LAYOUTS[layout] if array.ndim == 1 or layout == "contiguous" else {"compression": "gzip"}
            file.create_dataset(name, data=array, **options)
    return path


def opened(tmp_path: Path, *sides: Side, num_edges: int = 3, **datasets: Any) -> CandidateFile:
    write(tmp_path / "given", **datasets)
    (files,) = find_candidate_files(tmp_path / "given", [edges_of(tmp_path / "edges", num_edges)], sides)
    return files[BUCKET]


def types(*of_edges: int) -> np.ndarray:
    return np.array(of_edges, np.int64)


LISTED = [[0, 1], [2, 3], [3, 3]]
GIVEN = [[8, 3], [4, 4], [0, 0]]


@pytest.mark.parametrize(
    ("side", "datasets", "of_edges", "partitions"),
    [
        (Side.LHS, {"head": LISTED}, (0, 0, 0), [[0, 0]] * 3),
        (Side.RHS, {"tail": [[8], [4], [0]]}, (0, 0, 0), [[1]] * 3),
        (Side.RHS, {"tail": GIVEN, "tail_partition": [[1, 0], [1, 7], [0, 1]]}, (0, 1, 0), [[1, 0], [0, 0], [0, 1]]),
        (Side.RHS, {"tail": [[3, 3], [4, 4], [0, 0]]}, (0, 1, 0), [[1, 1], [0, 0], [1, 1]]),
    ],
)
def test_candidates_lie_in_the_buckets_own_partition_or_in_the_one_given_where_their_type_has_several(
    tmp_path: Path, side: Side, datasets: dict[str, Any], of_edges: tuple[int, ...], partitions: list[list[int]]
) -> None:
    file = opened(tmp_path, side, **datasets)
    found = file.read(side, np.arange(0, 3), types(*of_edges), SIZES)

    rows = datasets[side.pick("head", "tail")]
    assert [rows, partitions] == [array.tolist() for array in found]
    assert (file.num_candidates, [np.int64] * 2) == ({side: len(rows[0])}, [array.dtype for array in found])


@settings(max_examples=examples(15))
@given(
    data=st.data(), dtype=st.sampled_from(["int64", "int32", "uint8"]), layout=st.sampled_from(["contiguous", "gzip"])
)
def test_a_range_of_rows_is_that_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: str, layout: str
) -> None:
    num_edges, k = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    cells = st.lists(st.integers(0, 3), min_size=num_edges * k, max_size=num_edges * k)
    values = np.array(data.draw(cells), dtype).reshape(num_edges, k)
    folder = tmp_path_factory.mktemp("c")
    write(folder / "given", layout=layout, head=values)
    (files,) = find_candidate_files(folder / "given", [edges_of(folder / "edges", num_edges)], [Side.LHS])
    start, stop = sorted((data.draw(st.integers(0, num_edges)), data.draw(st.integers(0, num_edges))))

    part = files[BUCKET].read(Side.LHS, np.arange(start, stop), np.zeros(stop - start, np.int64), SIZES)
    assert values[start:stop].tolist() == part[0].tolist()


ROW = "expected a row of its partition, 0 to"
OUT_OF_RANGE = {
    "too large": ({"head": [[0], [4], [9]]}, (0, 0, 0), f"head: row 1, column 0: {ROW} 3, found 4"),
    "negative": ({"head": [[0, 0], [0, -1], [9, 9]]}, (0, 0, 0), f"head: row 1, column 1: {ROW} 3, found -1"),
    "of the other type": ({"head": [[0], [4], [5]]}, (0, 1, 1), f"head: row 2, column 0: {ROW} 4, found 5"),
    "of the other partition": (
        {"head": [[4], [8], [9]], "head_partition": [[1], [1], [1]]},
        (0, 0, 0),
        f"head: row 2, column 0: {ROW} 8, found 9",
    ),
    "partition": (
        {"head": [[0], [0], [0]], "head_partition": [[1], [0], [2]]},
        (0, 0, 0),
        "head_partition: row 2, column 0: expected a partition, 0 to 1, found 2",
    ),
    "beyond int64": (
        {"head": np.array([[0], [0], [2**64 - 1]], np.uint64)},
        (0, 0, 0),
        f"head: row 2, column 0: {ROW} 3, found -1",
    ),
}


@pytest.mark.parametrize(("datasets", "of_edges", "fault"), OUT_OF_RANGE.values(), ids=OUT_OF_RANGE.keys())
def test_an_entity_that_is_not_there_is_named_with_its_row_and_column(
    tmp_path: Path, datasets: dict[str, Any], of_edges: tuple[int, ...], fault: str
) -> None:
    file = opened(tmp_path, Side.LHS, **datasets)
    line = fault_of(lambda: file.read(Side.LHS, np.arange(0, 3), types(*of_edges), SIZES), DataError)

    assert f"{file.path}: dataset {fault}; check that the candidates belong to this graph" == line
    with pytest.raises(DataError, match=r"row [12], column"):  # named by the row of the file
        file.read(Side.LHS, np.arange(1, 3), types(*of_edges[1:]), SIZES)


WRONG_HEADERS = {
    "absent": ({"tail": [[0]] * 3}, "expected a dataset head, found tail; check the path"),
    "not aligned": ({"head": [[0]] * 2}, "dataset head: not aligned with {edges}: expected 3 rows, "),
    "a list": ({"head": [0] * 3}, "dataset head: expected two dimensions (edges, candidates), found shape (3,); "),
    "nobody": ({"head": np.zeros((3, 0), int)}, "dataset head: expected at least one candidate per edge, found shape"),
    "reals": ({"head": [[0.5]] * 3}, "dataset head: expected integers, found float64; "),
    "partitions of another shape": (
        {"head": [[0]] * 3, "head_partition": [[0, 1]] * 3},
        "dataset head_partition: expected shape (3, 1) as head, found (3, 2)",
    ),
    "partitions that are no integers": (
        {"head": [[0]] * 3, "head_partition": [[0.0]] * 3},
        "dataset head_partition: expected integers, found float64; ",
    ),
}


@pytest.mark.parametrize(("datasets", "fault"), WRONG_HEADERS.values(), ids=WRONG_HEADERS.keys())
def test_a_file_of_another_form_is_refused_before_anything_starts(
    tmp_path: Path, datasets: dict[str, Any], fault: str
) -> None:
    path = write(tmp_path / "given", **datasets)
    edges = edges_of(tmp_path / "edges")
    line = fault_of(lambda: find_candidate_files(tmp_path / "given", [edges], [Side.LHS]))

    assert line.startswith(f"{path}: {fault.format(edges=edges[BUCKET].path)}")


def test_only_sides_that_are_ranked_and_buckets_that_have_edges_need_candidates(tmp_path: Path) -> None:
    edges_of(tmp_path / "edges", 0, Bucket(1, 1))

    assert opened(tmp_path, Side.RHS, tail=[[0]] * 3).num_candidates == {Side.RHS: 1}
    with pytest.raises(StorageError, match=r"candidates_1_1\.h5: expected an HDF5 file, found no such file"):
        find_candidate_files(tmp_path / "given", [edges_of(tmp_path / "edges", 2, Bucket(1, 1))], [Side.RHS])


def test_each_of_several_edge_paths_has_a_folder_of_its_own(tmp_path: Path) -> None:
    edges = [edges_of(tmp_path / "a", 3), edges_of(tmp_path / "b", 2)]
    write(tmp_path / "given" / "0", head=[[0]] * 3)
    assert (
        f"{tmp_path / 'given'}: expected a folder of candidates per edge path, 0 to 1, as edge_paths has 2, found no "
        "folder 1; move the files of edge_paths[1] there"
    ) == fault_of(lambda: find_candidate_files(tmp_path / "given", edges, [Side.LHS]))

    write(tmp_path / "given" / "1", head=[[0, 1]] * 2)
    files = find_candidate_files(tmp_path / "given", edges, [Side.LHS])
    assert [(found[BUCKET].num_edges, found[BUCKET].num_candidates[Side.LHS]) for found in files] == [(3, 1), (2, 2)]
    (alone,) = find_candidate_files(tmp_path / "given", edges[:1], [Side.LHS])
    assert tmp_path / "given" / "0" / "candidates_0_1.h5" == alone[BUCKET].path


def test_a_file_that_changes_during_the_run_is_noticed(tmp_path: Path) -> None:
    file = opened(tmp_path, Side.LHS, head=[[0]] * 3)
    write(tmp_path / "given", head=[[0]] * 4)
    with pytest.raises(StorageError, match=r"as at the start, found \(4, 1\); it changed during the run"):
        file.read(Side.LHS, np.arange(0, 3), types(0, 0, 0), SIZES)
