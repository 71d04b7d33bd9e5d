import os
import pickle
from unittest import mock

import h5py
import numpy as np
import pytest
import torch

from pbgeval.errors import DataError
from pbgeval.notation import Bucket
from pbgeval.storage import edges
from pbgeval.storage.edges import bucket_path, find_buckets
from tests.kit.pbg_files import LAYOUTS, write_edges
from tests.kit.refusals import fault_of

DTYPES = ["<i8", "<i4", ">i8", ">i4", "<u2", "|u1", "<u8"]
NUM_EDGES = 37


def columns(num_edges, seed=0):
    """Three different columns of ids that fit every integer type."""
    draw = np.random.Generator(np.random.Philox(seed))
    return [draw.integers(0, high, num_edges) for high in (100, 9, 120)]


def only_bucket(folder):
    (file,) = find_buckets(folder, 1, 1).values()
    return file


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_and_integer_type_gives_the_same_int64_edges(tmp_path, layout, dtype):
    lhs, rel, rhs = columns(NUM_EDGES)
    path = write_edges(tmp_path, (0, 0), lhs, rel, rhs, dtype=dtype, layout=LAYOUTS[layout])
    file = only_bucket(tmp_path)

    assert (path, Bucket(0, 0), NUM_EDGES, file, {False}) == (
        file.path,
        file.bucket,
        file.num_edges,
        pickle.loads(pickle.dumps(file)),
        {file.has_weight, file.lhs_featurized, file.rhs_featurized},
    )
    for start, stop in [(0, NUM_EDGES), (0, 0), (NUM_EDGES, NUM_EDGES), (3, 4), (5, 21), (30, NUM_EDGES)]:
        block = file.read(start, stop)
        assert (start, stop - start) == (block.start, block.num_edges)
        for expected, found in zip((lhs, rel, rhs), (block.lhs, block.rel, block.rhs), strict=True):
            assert (found.dtype, expected[start:stop].tolist()) == (torch.int64, found.tolist())
        assert (block.weight, block.lhs_features, block.rhs_features) == (None, None, None)


@pytest.mark.parametrize("dtype", ["<i8", "<i4", ">i8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_plain_pieces_are_read_without_hdf5_while_the_file_is_the_same(tmp_path, layout, dtype):
    path = write_edges(tmp_path, (0, 0), *columns(NUM_EDGES), dtype=dtype, layout=LAYOUTS[layout])
    file, others, changed = only_bucket(tmp_path), columns(NUM_EDGES, seed=1), path.stat().st_mtime_ns

    with mock.patch.object(edges, "open_hdf5_at", side_effect=edges.open_hdf5_at) as opened:
        file.read(5, 21)
        is_plain = np.dtype(dtype) in (np.int32, np.int64) and layout in ("contiguous", "chunked", "one_chunk")
        assert opened.called != is_plain
        write_edges(tmp_path, (0, 0), *others, dtype=dtype, layout=LAYOUTS[layout])
        os.utime(path, ns=(changed + 1, changed + 1))
        opened.reset_mock()
        assert (others[0][5:21].tolist(), 1) == (file.read(5, 21).lhs.tolist(), opened.call_count)


@pytest.mark.parametrize(
    ("layout", "rows"), [("contiguous", 1), ("one_chunk", 1), ("gzip_shuffle", 5), ("lzf_fletcher", 16)]
)
def test_the_header_says_how_many_rows_are_unpacked_together(tmp_path, layout, rows):
    write_edges(tmp_path, (0, 0), *columns(3), layout=LAYOUTS[layout])

    assert rows == only_bucket(tmp_path).rows_per_chunk


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bucket_of_no_edges_is_a_bucket(tmp_path, layout):
    write_edges(tmp_path, (0, 0), [], [], [], layout=LAYOUTS[layout], weight=np.zeros(0), rhs_features=[])

    block = only_bucket(tmp_path).read(0, 0)
    assert [len(column) for column in (block.lhs, block.rel, block.rhs, block.weight)] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (np.array([0.5, 1.9, 3.0], np.float32), [0.5, float(np.float32(1.9)), 3.0]),
        (np.array([0.5, 1.9, 3.0], ">f8"), [0.5, 1.9, 3.0]),
        (np.array([0, 1, 3]), [0.0, 1.0, 3.0]),
        (np.array([0, 1, 3], np.uint8), [0.0, 1.0, 3.0]),
    ],
)
def test_weights_keep_their_fractions(tmp_path, stored, expected):
    write_edges(tmp_path, (0, 0), *columns(3), weight=stored)
    file = only_bucket(tmp_path)

    whole, part = file.read(0, 3).weight, file.read(1, 2).weight
    assert (True, torch.float64) == (file.has_weight, whole.dtype)
    assert (whole.tolist(), part.tolist()) == (expected, expected[1:2])


@pytest.mark.parametrize("form", ["bucket", "npy"])
def test_a_number_beyond_int64_is_told_as_it_is(tmp_path, form):
    numbers = np.array([[0, 1, 2], [3, 0, 2**63 + 5]], np.uint64)
    file, where = write_edges(tmp_path, (0, 0), *numbers.T, dtype="<u8"), ": dataset rhs"
    if form == "npy":
        file, where = tmp_path / "x.npy", ""
        np.save(file, numbers)
    source = edges.edges_of_file(file) if form == "npy" else only_bucket(tmp_path)

    line = fault_of(lambda: source.read(1, 2), DataError)
    assert line.startswith(f"{file}{where}: row 1: expected an integer up to 2^63 - 1, got {2**63 + 5}; ")


@pytest.mark.parametrize(
    ("start", "offsets", "data"),
    [(0, [0, 2, 3, 3, 6], [4, 5, 6, 7, 8, 9]), (1, [0, 1, 1, 4], [6, 7, 8, 9]), (4, [0], [])],
)
def test_features_are_rebased_to_the_rows_read(tmp_path, start, offsets, data):
    write_edges(tmp_path, (0, 0), [-1, -1, 7, -1], [0] * 4, [1] * 4, lhs_features=[[4, 5], [6], [], [7, 8, 9]])
    file = only_bucket(tmp_path)
    block = file.read(start, 4)

    assert (file.lhs_featurized, file.rhs_featurized, block.rhs_features) == (True, False, None)
    assert (offsets, data) == (block.lhs_features.offsets.tolist(), block.lhs_features.data.tolist())


@pytest.mark.parametrize(
    ("first", "rhs", "offsets", "fault"),
    [
        (1, [-1, 3, 4], [0, 1, 1, 2], "dataset rhs: row 2: expected -1"),
        (0, [-1] * 3, [0, 2, 1, 3], "dataset rhsd_offsets: row "),
        (0, [-1] * 3, [0, 1, 2, 9], "dataset rhsd_offsets: row "),
        (0, [-1] * 3, [-1, 0, 1, 3], "dataset rhsd_offsets: row "),
    ],
)
def test_an_entity_beside_its_features_and_offsets_that_point_nowhere_are_refused(tmp_path, first, rhs, offsets, fault):
    path = write_edges(tmp_path, (0, 0), [0] * 3, [0] * 3, rhs, rhs_features=[[1], [2], [3]])
    with h5py.File(path, "r+") as file:
        file["rhsd_offsets"][...] = offsets

    assert f"edges_0_0.h5: {fault}" in fault_of(lambda: only_bucket(tmp_path).read(first, 3))


def test_buckets_come_in_order_and_those_without_a_file_are_absent(tmp_path):
    for bucket in [(10, 0), (2, 1), (0, 0), (2, 0)]:
        write_edges(tmp_path, bucket, *columns(sum(bucket)))
    for name in ("edges_0_1.h5.tmp", "notes.txt"):
        (tmp_path / name).write_text("not an edge file")

    assert [(bucket, file.num_edges, file.path) for bucket, file in find_buckets(tmp_path, 11, 2).items()] == [
        (bucket, sum(bucket), bucket_path(tmp_path, bucket)) for bucket in map(Bucket, (0, 2, 2, 10), (0, 0, 1, 0))
    ]


@pytest.mark.parametrize(
    ("folder", "names", "fault"),
    [
        ("none", [], ": no such file or folder"),
        ("file.txt", [], ": expected a folder of buckets, found a file"),
        (
            "empty",
            [],
            ": expected bucket files edges_<l>_<r>.h5 with l in 0..3 and r in 0..1, found nothing; check edge_paths",
        ),
        (
            "full",
            ["train", "test", *(f"file_{n}" for n in range(9))],
            ", found file_0, file_1, file_2, file_3, file_4, file_5 and 5 more;",
        ),
    ],
)
def test_a_folder_that_is_missing_or_without_any_bucket_file_is_a_fault_that_says_what_is_there(
    tmp_path, folder, names, fault
):
    (tmp_path / "file.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name in names:
        (tmp_path / "full" / name).mkdir(parents=True)

    line = fault_of(lambda: find_buckets(tmp_path / folder, 4, 2))
    assert line.startswith(f"{tmp_path / folder}: ")
    assert fault in line


MALFORMED = [
    (None, "expected a dataset {}, found "),
    (np.zeros(3), "dataset {}: expected integers, found float64"),
    (np.zeros(3, bool), "dataset {}: expected integers, found bool"),
    (np.zeros((3, 1), int), "dataset {}: expected one dimension, found shape (3, 1)"),
    (np.int64(3), "dataset {}: expected one dimension, found shape ()"),
    (h5py.Empty("i8"), "dataset {}: expected one dimension, found shape None"),
    (np.zeros(4, int), " rows (as many as rel), found "),
]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        *(({name: value}, expected.format(name)) for name in ("lhs", "rel", "rhs") for value, expected in MALFORMED),
        ({"weight": np.zeros(2)}, "dataset weight: expected 3 rows (as many as rel), found 2"),
        ({"weight": np.array(["a", "b", "c"], "S1")}, "dataset weight: expected numbers, found |S1"),
        ({"lhsd_data": np.zeros(2, int)}, "expected a dataset lhsd_offsets, found lhs, lhsd_data, rel, rhs"),
        ({"rhsd_offsets": np.zeros(4, int)}, "expected a dataset rhsd_data"),
        (
            {"rhsd_offsets": np.zeros(3, int), "rhsd_data": np.zeros(0, int)},
            "dataset rhsd_offsets: expected 4 rows (one more than the edges), found 3",
        ),
    ],
)
def test_missing_and_malformed_columns_are_named(tmp_path, changes, expected):
    path = write_edges(tmp_path, (0, 0), *columns(3))
    with h5py.File(path, "r+") as file:
        for name, value in changes.items():
            file.pop(name, None)
            if value is not None:
                file[name] = value
    line = fault_of(lambda: find_buckets(tmp_path, 1, 1))

    assert line.startswith(f"{path}: ")
    assert expected in line


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda path: os.truncate(path, path.stat().st_size - 1000), "truncated"),
        (lambda path: write_edges(path.parent, (0, 0), *columns(20)), "dataset lhs: expected 3000 rows"),
        (os.remove, "no such file"),
    ],
)
def test_a_file_that_was_truncated_shrank_or_went_since_its_header_was_read_is_a_fault(tmp_path, damage, fault):
    path = write_edges(tmp_path, (0, 0), *columns(3000))
    file = only_bucket(tmp_path)
    damage(path)

    assert fault in fault_of(lambda: file.read(0, 3000))
