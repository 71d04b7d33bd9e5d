"""HDF5 reads rows that are not stored as fill values: every reader refuses them, and sizes that no file can have."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from pbgeval.notation import ENDS, Bucket, Side
from pbgeval.storage.candidates import find_candidate_files
from pbgeval.storage.checkpoint import open_embeddings
from pbgeval.storage.edges import find_buckets
from pbgeval.storage.model import read_model_parameters
from pbgeval.storage.row_files import create_query_file, open_query_file
from tests.kit.pbg_files import write_edges, write_embeddings, write_model
from tests.kit.refusals import fault_of

NUM_ROWS = 24
IDS = np.arange(NUM_ROWS)
VALUES = np.arange(NUM_ROWS * 8, dtype=np.float32).reshape(NUM_ROWS, 8)


def written(folder: Path, reader: str) -> Path:
    """Write the file that a reader reads; all datasets have 24 rows."""
    if reader == "embeddings":
        write_embeddings(folder, "all", 0, VALUES, version=3)
    elif reader == "model":
        write_model(folder, {(0, Side.RHS): {"diagonal": VALUES[:, 0]}}, version=3)
    elif reader == "ranks":
        create_query_file(folder, "ranks", 0, Bucket(0, 0), NUM_ROWS, list(ENDS), "digest")
    else:
        write_edges(folder, (0, 0), IDS, IDS, IDS, weight=np.ones(NUM_ROWS) if reader == "weight" else None)
        with h5py.File(folder / "candidates_0_0.h5", "w") as file:
            file["head"], file["head_partition"] = VALUES.astype(int), VALUES.astype(int)
    return folder


def read_edges(folder: Path) -> object:
    return find_buckets(folder, 1, 1)[Bucket(0, 0)].read(0, NUM_ROWS)


def read_candidates(folder: Path) -> object:
    return find_candidate_files(folder, [find_buckets(folder, 1, 1)], [Side.LHS])


# Where rows are missed: (file, dataset, what reads it).
READERS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    **{name: ("edges_0_0.h5", name, read_edges) for name in ("lhs", "rel", "rhs", "weight")},
    "embeddings": (
        "embeddings_all_0.v3.h5",
        "embeddings",
        lambda folder: open_embeddings(folder, "all", 0, 3, dimension=8, num_rows=NUM_ROWS).load(),
    ),
    "model": (
        "model.v3.h5",
        "model/relations/0/operator/rhs/diagonal",
        lambda folder: read_model_parameters(folder, 3),
    ),
    "head": ("candidates_0_0.h5", "head", read_candidates),
    "head_partition": ("candidates_0_0.h5", "head_partition", read_candidates),
    "ranks": ("ranks/0/ranks_0_0.h5", "head/better", lambda folder: open_query_file(folder, "ranks", 0, Bucket(0, 0))),
}


def half_written(file: h5py.File, name: str, values: np.ndarray, **layout: object) -> None:
    dataset = file.create_dataset(name, values.shape, values.dtype, chunks=(4, *values.shape[1:]), **layout)
    dataset[: NUM_ROWS // 2] = values[: NUM_ROWS // 2]


MISSING: dict[str, Callable[[h5py.File, str, np.ndarray], object]] = {
    "never written": lambda file, name, values: file.create_dataset(name, values.shape, values.dtype),
    "fill value": lambda file, name, values: file.create_dataset(name, values.shape, values.dtype, fillvalue=3),
    "half written": half_written,
    "half written, packed": lambda *where: half_written(*where, compression="gzip", fillvalue=1),
    "no chunk": lambda file, name, values: file.create_dataset(name, values.shape, values.dtype, chunks=True),
}


def replace(folder: Path, reader: str, make: Callable[[h5py.File, str, np.ndarray], object]) -> Callable[[], object]:
    """Replace a dataset in its file; return what reads it."""
    file_name, name, read = READERS[reader]
    with h5py.File(written(folder, reader) / file_name, "r+") as file:
        values, key = file[name][...], file[name].attrs.get("state_dict_key")
        del file[name]
        make(file, name, values)
        if key is not None and isinstance(file.get(name, getlink=True), h5py.HardLink):
            file[name].attrs["state_dict_key"] = key
    return lambda: read(folder)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("reader", READERS)
def test_rows_that_are_not_stored_are_refused(tmp_path: Path, reader: str, missing: str) -> None:
    assert fault_of(replace(tmp_path, reader, MISSING[missing])).startswith(f"{tmp_path}/")


NO_DATASET: dict[str, Callable[[h5py.File, str, np.ndarray], object]] = {
    "a type": lambda file, name, _: file.__setitem__(name, np.dtype("f4")),
    "a link to a group": lambda file, name, _: file.__setitem__(name, h5py.SoftLink("/")),
    "a group that holds itself": lambda file, name, _: file.create_group(name).__setitem__("inside", file["/"]),
}


@pytest.mark.parametrize("found", NO_DATASET)
@pytest.mark.parametrize("reader", ["lhs", "embeddings", "head", "ranks"])
def test_what_is_no_dataset_is_refused(tmp_path: Path, reader: str, found: str) -> None:
    assert fault_of(replace(tmp_path, reader, NO_DATASET[found])).startswith(f"{tmp_path}/")


def test_what_is_missing_is_said_with_numbers(tmp_path: Path) -> None:
    line = fault_of(replace(tmp_path, "lhs", MISSING["half written"]))
    assert line.startswith(f"{tmp_path}/edges_0_0.h5: dataset lhs: 3 of 6 chunks were never written")


def other_file(file: h5py.File, values: np.ndarray) -> Path:
    """Write the values into files beside an open one, as HDF5 and as they are; return the path of the former."""
    path = Path(file.filename).parent / "other.h5"
    with h5py.File(path, "w") as other:
        other["values"] = values
    values.tofile(path.with_name("raw"))
    return path


def virtual(file: h5py.File, name: str, values: np.ndarray) -> None:
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource(other_file(file, values), "values", values.shape, values.dtype)
    file.create_virtual_dataset(name, layout)


def external(file: h5py.File, name: str, values: np.ndarray) -> None:
    raw = os.fspath(other_file(file, values).with_name("raw"))
    file.create_dataset(name, values.shape, values.dtype, external=[(raw, 0, values.nbytes)])


def moved(file: h5py.File, name: str, values: np.ndarray) -> None:
    file["there"] = values
    file[name] = h5py.SoftLink("/there")


ELSEWHERE: dict[str, tuple[str, Callable[[h5py.File, str, np.ndarray], object]]] = {
    "virtual": ("expected rows in this file, found rows in others", virtual),
    "external": ("expected rows in this file, found rows in others", external),
    "soft link": ("expected a dataset, found a link", moved),
    "soft link to nothing": (
        "expected a dataset, found a link",
        lambda file, name, _: file.__setitem__(name, h5py.SoftLink("/nowhere")),
    ),
    "external link": (
        "expected a dataset, found a link",
        lambda file, name, values: file.__setitem__(name, h5py.ExternalLink(other_file(file, values), "values")),
    ),
    "external link to a device": (
        "expected a dataset, found a link",
        lambda file, name, _: file.__setitem__(name, h5py.ExternalLink("/dev/zero", "values")),
    ),
}


@pytest.mark.parametrize("where", ELSEWHERE)
@pytest.mark.parametrize("reader", READERS)
def test_links_and_rows_in_other_files_are_refused(tmp_path: Path, reader: str, where: str) -> None:
    message, make = ELSEWHERE[where]
    line = fault_of(replace(tmp_path, reader, make))
    assert line.startswith(f"{tmp_path}/{READERS[reader][0]}: ")
    assert line.endswith(f"{READERS[reader][1]}: {message}; copy the rows into this file")


def test_a_link_to_a_group_on_the_way_is_refused(tmp_path: Path) -> None:
    with h5py.File(written(tmp_path, "ranks") / READERS["ranks"][0], "r+") as file:
        file.move("head", "there")
        file["head"] = h5py.SoftLink("/there")
    assert "expected a dataset, found a link" in fault_of(lambda: READERS["ranks"][2](tmp_path))


def in_the_header(file: h5py.File, name: str, values: np.ndarray) -> None:
    h5py.h5d.create(
        file.id, name.encode(), h5py.h5t.py_create(values.dtype), h5py.h5s.create_simple(values.shape), compact()
    )
    file[name].write_direct(values)


def compact() -> h5py.h5p.PropDCID:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    return properties


@pytest.mark.parametrize("reader", ["lhs", "rel", "rhs", "weight", "embeddings", "model"])
def test_rows_that_lie_in_the_header_are_read(tmp_path: Path, reader: str) -> None:
    rows_of: Callable[[Any], Any] = {
        "embeddings": lambda tensor: tensor,
        "model": lambda model: model.operators[0, Side.RHS]["diagonal"],
    }.get(reader, attrgetter(reader))

    expected = READERS[reader][2](written(tmp_path / "plain", reader))
    found = replace(tmp_path / "stored", reader, in_the_header)()

    assert rows_of(expected).tolist() == rows_of(found).tolist()


def sparse(file: h5py.File, name: str, values: np.ndarray) -> None:
    """Declare 2^34 rows and write the last ones: 512 GiB of which a few blocks are on the disk."""
    file.create_dataset(name, (1 << 34, *values.shape[1:]), values.dtype)[-NUM_ROWS:] = values


def packed_zeros(file: h5py.File, name: str, values: np.ndarray) -> None:
    """Declare one chunk of 2 GiB that a thousand bytes unpack to."""
    rows = (1 << 31) // values[:1].nbytes
    layout = {"chunks": (rows, *values.shape[1:]), "compression": "gzip", "maxshape": (None, *values.shape[1:])}
    dataset = file.create_dataset(name, (rows, *values.shape[1:]), values.dtype, **layout)
    dataset.id.write_direct_chunk((0,) * values.ndim, zlib.compress(bytes(1 << 20)))


@pytest.mark.parametrize("declared", [sparse, packed_zeros])
@pytest.mark.parametrize("reader", ["rel", "weight", "embeddings", "head"])
def test_sizes_that_the_file_does_not_have_on_the_disk_are_refused(
    tmp_path: Path, reader: str, declared: Callable[[h5py.File, str, np.ndarray], object]
) -> None:
    line = fault_of(replace(tmp_path, reader, declared))

    assert f"dataset {READERS[reader][1]}: " in line
    assert "bytes of rows in a file that takes " in line


@pytest.mark.parametrize("with_size", [False, True])
@pytest.mark.parametrize("power", [31, 40, 60, 62])
def test_edges_that_only_the_header_declares_are_refused(tmp_path: Path, power: int, with_size: bool) -> None:
    path = written(tmp_path, "lhs") / "edges_0_0.h5"
    header, size = path.read_bytes(), NUM_ROWS * 8
    changes = {struct.pack("<QQ", NUM_ROWS, NUM_ROWS): struct.pack("<QQ", 1 << power, 1 << power)}  # now and at most
    changes |= {struct.pack("<Q", size): struct.pack("<Q", (8 << power) % (1 << 64))} if with_size else {}
    assert [header.count(sound) for sound in changes] == [3] * len(changes)
    for sound, damaged in changes.items():
        header = header.replace(sound, damaged)
    path.write_bytes(header)

    assert "dataset rel: " in fault_of(lambda: read_edges(tmp_path))


def test_zeros_that_pack_well_are_read(tmp_path: Path) -> None:
    layout = {"chunks": (1 << 18,), "maxshape": (None,), "compression": "gzip", "compression_opts": 9}
    zeros = np.zeros(1 << 20, np.int64)
    write_edges(tmp_path, (0, 0), zeros, zeros, zeros, layout=layout)

    assert not find_buckets(tmp_path, 1, 1)[Bucket(0, 0)].read(0, len(zeros)).rel.any()


def test_numbers_of_fewer_bits_than_bytes_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "lhs") / "edges_0_0.h5"
    header = path.read_bytes()
    # Of a type: 8 bytes, the first bit, 64 bits. With 40 HDF5 would cut large values.
    sound, damaged = (struct.pack("<IHH", 8, 0, num_bits) for num_bits in (64, 40))
    start, version, *columns = header.split(sound)
    assert len(columns) == 3
    path.write_bytes(start + sound + damaged.join([version, *columns]))

    assert "dataset rel: a type of numbers that numpy does not have" in fault_of(lambda: read_edges(tmp_path))
