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


def virtual(file: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype, *sources: h5py.VirtualSource) -> None:
    """Make a virtual dataset whose first rows are those of the first source, and so on."""
    layout = h5py.VirtualLayout(shape, dtype)
    start = 0
    for source in sources:
        layout[start : start + source.shape[0]] = source
        start += source.shape[0]
    file.create_virtual_dataset(name, layout)


def other_file(file: h5py.File, values: np.ndarray, name: str = "other.h5") -> str:
    """Write another file beside an open one; return its name."""
    with h5py.File(Path(file.filename).parent / name, "w") as other:
        other["values"] = values
    return name


def virtual_of_other(file: h5py.File, name: str, values: np.ndarray, num_stored: int, num_mapped: int) -> None:
    """Take the first rows from another file; it holds fewer than are mapped, or none."""
    with h5py.File(Path(file.filename).parent / "other.h5", "w") as other:
        if num_stored:
            other["values"] = values[:num_stored]
        else:
            other.create_dataset("values", values.shape, values.dtype)
    source = h5py.VirtualSource("other.h5", "values", (num_mapped, *values.shape[1:]), values.dtype)
    virtual(file, name, values.shape, values.dtype, source)


def virtual_by_a_pattern(file: h5py.File, name: str, values: np.ndarray) -> None:
    space = h5py.h5s.create_simple(values.shape, (h5py.h5s.UNLIMITED, *values.shape[1:]))
    rest = (1,) * (values.ndim - 1)
    block = (4, *values.shape[1:])
    space.select_hyperslab((0,) * values.ndim, (h5py.h5s.UNLIMITED, *rest), (4, *values.shape[1:]), block)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_virtual(space, b"part-%b.h5", b"values", h5py.h5s.create_simple(block))
    for part in range(6):
        if part != 2:
            other_file(file, values[4 * part : 4 * part + 4], f"part-{part}.h5")
    group, _, own_name = name.rpartition("/")
    h5py.h5d.create(
        (file[group] if group else file).id, own_name.encode(), h5py.h5t.py_create(values.dtype), space, properties
    )


def virtual_of_itself(file: h5py.File, name: str, values: np.ndarray) -> None:
    virtual(file, name, values.shape, values.dtype, h5py.VirtualSource(".", name, values.shape, values.dtype))


def external(file: h5py.File, name: str, values: np.ndarray, num_bytes: int | None) -> None:
    path = Path(file.filename).parent / "raw"
    if num_bytes is not None:
        path.write_bytes(values.tobytes()[:num_bytes])
    file.create_dataset(name, values.shape, values.dtype, external=[(os.fspath(path), 0, values.nbytes)])


def half_written(file: h5py.File, name: str, values: np.ndarray, **layout: object) -> None:
    dataset = file.create_dataset(name, values.shape, values.dtype, chunks=(4, *values.shape[1:]), **layout)
    dataset[: NUM_ROWS // 2] = values[: NUM_ROWS // 2]


MISSING: dict[str, Callable[[h5py.File, str, np.ndarray], object]] = {
    "never written": lambda file, name, values: file.create_dataset(name, values.shape, values.dtype),
    "fill value": lambda file, name, values: file.create_dataset(name, values.shape, values.dtype, fillvalue=3),
    "half written": half_written,
    "half written, packed": lambda *where: half_written(*where, compression="gzip", fillvalue=1),
    "no chunk": lambda file, name, values: file.create_dataset(name, values.shape, values.dtype, chunks=True),
    "no source": lambda file, name, values: virtual(
        file, name, values.shape, values.dtype, h5py.VirtualSource("none.h5", "x", values.shape, values.dtype)
    ),
    "a gap": lambda *where: virtual_of_other(*where, 12, 12),
    "a source never written": lambda *where: virtual_of_other(*where, 0, NUM_ROWS),
    "a short source": lambda *where: virtual_of_other(*where, 5, NUM_ROWS),
    "a pattern": virtual_by_a_pattern,
    "itself": virtual_of_itself,
    "no raw file": lambda *where: external(*where, None),
    "a short raw file": lambda *where: external(*where, 50),
    **{
        f"a link to {path[:12]}": lambda file, name, _, path=path: file.__setitem__(
            name, h5py.SoftLink(path or f"/{name}")
        )
        for path in ("/nowhere", "a/" * 5000, "")  # the last one to itself
    },
    **{
        f"a link to the file {path[:12]}": lambda file, name, _, path=path: file.__setitem__(
            name, h5py.ExternalLink(path or Path(file.filename).name, name)
        )
        for path in ("none.h5", "/dev/zero", "x" * 5000, "")  # the last one to itself
    },
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


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("half written", "3 of 6 chunks were never written"),
        ("a gap", "12 of 24 values were never written"),
        ("a short raw file", "142 of 192 bytes of {folder}/raw were never written"),
    ],
)
def test_what_is_missing_is_said_with_numbers(tmp_path: Path, missing: str, expected: str) -> None:
    line = fault_of(replace(tmp_path, "lhs", MISSING[missing]))
    assert line.startswith(f"{tmp_path}/edges_0_0.h5: dataset lhs: {expected.format(folder=tmp_path)}")


def linked(file: h5py.File, name: str, values: np.ndarray) -> None:
    other_file(file, values[:5], "before.h5")  # so that the values lie at another place than in the file asked
    with h5py.File(Path(file.filename).parent / "other.h5", "w") as other:
        other["padding"] = np.arange(999)
        other["there"] = values
        other["values"] = h5py.SoftLink("there")
    file[name] = h5py.ExternalLink("other.h5", "/values")


def whole_virtual(file: h5py.File, name: str, values: np.ndarray) -> None:
    parts = [values[:10], values[10:]]
    sources = [
        h5py.VirtualSource(other_file(file, part, f"part{index}.h5"), "values", part.shape, part.dtype)
        for index, part in enumerate(parts)
    ]
    virtual(file, name, values.shape, values.dtype, *sources)


STORED: dict[str, Callable[[h5py.File, str, np.ndarray], object]] = {
    "linked": linked,
    "virtual": whole_virtual,
    "external": lambda file, name, values: external(file, name, values, values.nbytes),
    "compact": lambda file, name, values: (
        h5py.h5d.create(
            file.id, name.encode(), h5py.h5t.py_create(values.dtype), h5py.h5s.create_simple(values.shape), compact()
        )
        and file[name].write_direct(values)
    ),
}


def compact() -> h5py.h5p.PropDCID:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    return properties


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("reader", ["lhs", "rel", "rhs", "weight", "embeddings", "model"])
def test_rows_that_lie_elsewhere_in_the_folder_are_read(tmp_path: Path, reader: str, stored: str) -> None:
    rows_of: Callable[[Any], Any] = {
        "embeddings": lambda tensor: tensor,
        "model": lambda model: model.operators[0, Side.RHS]["diagonal"],
    }.get(reader, attrgetter(reader))

    expected = READERS[reader][2](written(tmp_path / "plain", reader))
    found = replace(tmp_path / "stored", reader, STORED[stored])()

    assert rows_of(expected).tolist() == rows_of(found).tolist()


@pytest.mark.parametrize("how", ["link", "virtual", "external", "symbolic"])
@pytest.mark.parametrize("reader", ["lhs", "embeddings", "ranks"])
def test_rows_outside_the_folder_are_read_only_where_the_user_says_so(
    tmp_path: Path, reader: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, raw = os.fspath(tmp_path / "x.h5"), os.fspath(tmp_path / "raw")

    def make(file: h5py.File, name: str, values: np.ndarray) -> None:
        form = (values.shape, values.dtype)
        with h5py.File(there, "w") as other:
            other["values"] = values
        values.tofile(raw)
        (Path(file.filename).parent / "here.h5").symlink_to(there)
        ways = {
            "link": lambda: file.__setitem__(name, h5py.ExternalLink(there, "values")),
            "symbolic": lambda: file.__setitem__(name, h5py.ExternalLink("here.h5", "values")),
            "virtual": lambda: virtual(file, name, *form, h5py.VirtualSource(there, "values", *form)),
            "external": lambda: file.create_dataset(name, *form, external=[(raw, 0, values.nbytes)]),
        }
        ways[how]()

    read = replace(tmp_path / "in", reader, make)
    assert "outside the folder of the file; set PBGEVAL_FOLLOW_LINKS=1" in fault_of(read)
    monkeypatch.setenv("PBGEVAL_FOLLOW_LINKS", "1")
    if reader == "ranks":
        assert "in one piece, found int64 of shape (24,) in pieces" in fault_of(read)  # rows are written where they lie
    else:
        assert read() is not None


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
