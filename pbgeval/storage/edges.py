"""Edge folder -> its bucket files; a bucket file and a range of rows -> edges.

Only the rows asked for are read, whatever the layout of the file, so memory follows the range and not the bucket
(a compressed file is unpacked chunk by chunk, so there it follows the range and one chunk).
A bucket without a file is empty. A file outside the declared partitions is refused: its edges would silently not count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np
import torch
from torch import Tensor

from pbgeval.errors import DataError, StorageError
from pbgeval.notation import Bucket, Side
from pbgeval.storage.hdf5 import Hdf5Dataset, Hdf5File
from pbgeval.storage.objects import RemoteObject, fingerprint_at, open_hdf5_at, read_object_folder
from pbgeval.storage.text import listed, one_line

# Datasets whose pieces lie in their file as arrays of 32- or 64-bit integers -> rows of them, without HDF5.
#
# Opening a file by HDF5 takes milliseconds, and h5py holds Python's lock while it reads; edges are read a bucket at a
# time, so both count. Where each piece begins is noted when the file's header is checked. Whatever is not plain, or has
# changed since, is left to HDF5, which reads all layouts and says what is wrong with a file.

_PLAIN_NUMBERS = (np.dtype(np.int32), np.dtype(np.int64))  # in this machine's byte order


@attrs.frozen
class PlainColumn:
    """Where the pieces of a dataset begin."""

    number: np.dtype[np.signedinteger[Any]]
    rows_per_piece: int
    offsets: tuple[int, ...]  # bytes

    @classmethod
    def of(cls, dataset: Hdf5Dataset) -> PlainColumn | None:
        """Return the pieces of a dataset; None if it has filters, other numbers, or no rows."""
        if dataset.dtype not in _PLAIN_NUMBERS or not dataset.num_rows:
            return None
        offsets = dataset.piece_offsets()
        return None if offsets is None else cls(dataset.dtype, dataset.rows_per_chunk or dataset.num_rows, offsets)

    def read(self, descriptor: int, start: int, stop: int) -> Tensor | None:
        """Return rows start to stop, int64; None where the file ends before."""
        numbers = np.empty(stop - start, self.number)
        row = start
        while row < stop:
            piece, place = divmod(row, self.rows_per_piece)
            num_rows = min(self.rows_per_piece - place, stop - row)
            part = numbers[row - start : row - start + num_rows]
            if not _fill(descriptor, part, self.offsets[piece] + place * self.number.itemsize):
                return None
            row += num_rows
        return torch.from_numpy(numbers.astype(np.int64, copy=False))


@attrs.frozen
class PlainColumns:
    """Where the columns of a file lie, and what tells that it is still that file."""

    columns: tuple[PlainColumn, ...]
    size: int  # of the file, bytes
    changed_ns: int

    @classmethod
    def of(cls, file: Hdf5File, datasets: Sequence[Hdf5Dataset]) -> PlainColumns | None:
        """Return where datasets of an open file lie; None where one is not plain or HDF5 does not read by itself."""
        if file.stat is None:
            return None
        columns = [PlainColumn.of(dataset) for dataset in datasets]
        plain = tuple(column for column in columns if column is not None)
        if len(plain) < len(columns):
            return None
        return cls(plain, file.stat.st_size, file.stat.st_mtime_ns)

    def read(self, path: Path, start: int, stop: int) -> list[Tensor] | None:
        """Return rows start to stop of each column, int64; None where HDF5 has to be asked what is wrong."""
        try:
            with path.open("rb", buffering=0) as file:
                stat = os.fstat(file.fileno())
                if (stat.st_size, stat.st_mtime_ns) != (self.size, self.changed_ns):
                    return None
                found = [column.read(file.fileno(), start, stop) for column in self.columns]
        except OSError:  # HDF5 meets it, too, and reports it
            return None
        rows = [column for column in found if column is not None]
        return rows if len(rows) == len(found) else None


def _fill(descriptor: int, numbers: np.ndarray, offset: int) -> bool:
    """Read bytes from an offset on into an array; tell whether there were enough."""
    rest = numbers.data.cast("B")
    while len(rest):
        num_bytes = os.preadv(descriptor, [rest], offset)
        if not num_bytes:
            return False
        rest, offset = rest[num_bytes:], offset + num_bytes
    return True


_INTEGERS = "iu"  # numpy's kinds: signed, unsigned
_NUMBERS = "iuf"
_BUCKET_FILE = re.compile(r"edges_(0|[1-9][0-9]*)_(0|[1-9][0-9]*)\.h5")


@attrs.frozen(eq=False)
class FeatureLists:
    """The features of featurized entities, one list per edge."""

    offsets: Tensor  # int64 (E + 1): where each edge's list starts in `data`; the first is 0
    data: Tensor  # int64: rows of the feature table, list after list


@attrs.frozen(eq=False)
class EdgeBlock:
    """Consecutive edges of a bucket file, ids as the file has them (not yet checked against entity counts)."""

    start: int  # row of the first edge in its file
    lhs: Tensor  # int64 (E): rows in the left partition, -1 where the entity is given by features
    rel: Tensor  # int64 (E)
    rhs: Tensor  # int64 (E)
    weight: Tensor | None  # float64 (E)
    lhs_features: FeatureLists | None
    rhs_features: FeatureLists | None

    @property
    def num_edges(self) -> int:
        """Number of rows in this block."""
        return len(self.rel)


@attrs.frozen
class BucketFile:
    """A bucket's file whose header has been checked; `find_buckets` makes them."""

    path: Path
    bucket: Bucket
    num_edges: int
    has_weight: bool
    lhs_featurized: bool
    rhs_featurized: bool
    rows_per_chunk: int  # rows that are unpacked together, 1 if not compressed; each range read unpacks its chunks anew
    plain: PlainColumns | None = None  # lhs, rel and rhs, where these are all and lie there as they are
    of: RemoteObject | None = None  # is read in place of the file

    def read(self, start: int, stop: int) -> EdgeBlock:
        """Read rows start to stop (exclusive).

        Raises:
            StorageError: the file is gone, damaged, or no longer what its header was.
            DataError: an edge has both an entity and features on one side.
        """
        if not 0 <= start <= stop <= self.num_edges:
            raise ValueError(f"rows {start} to {stop} of a bucket of {self.num_edges} edges")
        columns = self.plain.read(self.path, start, stop) if self.plain is not None else None
        if columns is not None:
            lhs, rel, rhs = columns
            return EdgeBlock(start, lhs, rel, rhs, weight=None, lhs_features=None, rhs_features=None)
        with open_hdf5_at(self.path, self.of) as file:
            rows = _Rows(file, start, stop)
            block = EdgeBlock(
                start=start,
                lhs=rows.integers("lhs", self.num_edges),
                rel=rows.integers("rel", self.num_edges),
                rhs=rows.integers("rhs", self.num_edges),
                weight=rows.reals("weight", self.num_edges) if self.has_weight else None,
                lhs_features=rows.features("lhsd", self.num_edges) if self.lhs_featurized else None,
                rhs_features=rows.features("rhsd", self.num_edges) if self.rhs_featurized else None,
            )
        for side in Side:
            _check_one_identity(self.path, block, side)
        return block

    def fingerprint(self) -> str:
        """Return a short text that changes when the file does."""
        return fingerprint_at(self.path, self.of)


class EdgeSource(Protocol):
    """The edges of one bucket: a `BucketFile`, or edges in an array (`edge_arrays`)."""

    @property
    def path(self) -> Path: ...
    @property
    def bucket(self) -> Bucket: ...
    @property
    def num_edges(self) -> int: ...
    @property
    def rows_per_chunk(self) -> int: ...
    def read(self, start: int, stop: int) -> EdgeBlock: ...
    def fingerprint(self) -> str: ...


def bucket_path(edge_path: Path, bucket: Bucket) -> Path:
    """Where PBG writes the edges of a bucket."""
    return edge_path / f"edges_{bucket.lhs}_{bucket.rhs}.h5"


def find_buckets(edge_path: Path, num_lhs: int, num_rhs: int) -> dict[Bucket, BucketFile]:
    """Open the header of every bucket file of a folder; buckets without a file are empty and not in the answer.

    Args:
        edge_path: the folder.
        num_lhs: the number of partitions on the left: the most that any type on the left of a relation has.
        num_rhs: likewise on the right.

    Returns:
        The buckets in lexicographic order.

    Raises:
        StorageError: the folder is missing, holds no bucket file, or holds one beyond the partitions;
            or a header is wrong (one fault per file).
    """
    folder = read_object_folder(edge_path)
    names = _list_folder(edge_path) if folder is None else sorted(folder.objects)

    found = sorted(Bucket(int(m[1]), int(m[2])) for m in map(_BUCKET_FILE.fullmatch, names) if m)
    beyond = [bucket for bucket in found if bucket.lhs >= num_lhs or bucket.rhs >= num_rhs]
    expected = f"edges_<l>_<r>.h5 with l in 0..{num_lhs - 1} and r in 0..{num_rhs - 1}"
    if beyond:
        files = listed([bucket_path(edge_path, bucket).name for bucket in beyond])
        raise StorageError(
            f"{edge_path}: expected only {expected}, found {files};"
            " is num_partitions in entities what the edges were written with?"
        )
    if not found:
        raise StorageError(
            f"{edge_path}: expected bucket files {expected}, found {listed(names)}; is this the folder of the edges?"
        )
    buckets: dict[Bucket, BucketFile] = {}
    faults: list[str] = []
    for bucket in found:
        try:
            path = bucket_path(edge_path, bucket)
            buckets[bucket] = open_bucket(path, bucket, None if folder is None else folder.in_place(path))
        except StorageError as error:
            faults.extend(error.faults)
    if faults:
        raise StorageError(*faults)
    return buckets


def _list_folder(edge_path: Path) -> list[str]:
    try:
        return sorted(os.listdir(edge_path))
    except FileNotFoundError as error:
        raise StorageError(
            f"{edge_path}: expected a folder of edges, found nothing of that name; check edge_paths"
        ) from error
    except OSError as error:
        raise StorageError(f"{edge_path}: expected a folder of edges, found: {one_line(error)}") from error


def open_bucket(path: Path, bucket: Bucket, of: RemoteObject | None = None) -> BucketFile:
    """Open the header of one bucket's file, or of the object that is read in its place.

    Raises:
        StorageError: it is missing, cannot be read, or is not in PBG's format.
    """
    with open_hdf5_at(path, of) as file:
        return _bucket_of_header(file, bucket, of)


def _bucket_of_header(file: Hdf5File, bucket: Bucket, of: RemoteObject | None) -> BucketFile:
    file.check_format_version()
    num_edges = _column(file, "rel", _INTEGERS).num_rows
    columns = [_column(file, name, _INTEGERS, num_edges) for name in ("lhs", "rel", "rhs")]
    has_weight = file.find("weight") is not None
    if has_weight:
        _column(file, "weight", _NUMBERS, num_edges)
    featurized = [_is_featurized(file, prefix, num_edges) for prefix in ("lhsd", "rhsd")]
    return BucketFile(
        path=file.path,
        bucket=bucket,
        num_edges=num_edges,
        has_weight=has_weight,
        lhs_featurized=featurized[0],
        rhs_featurized=featurized[1],
        rows_per_chunk=max((column.rows_per_chunk or 1) if column.num_filters else 1 for column in columns),
        plain=None if of is not None or has_weight or any(featurized) else PlainColumns.of(file, columns),
        of=of,
    )


def _is_featurized(file: Hdf5File, prefix: str, num_edges: int) -> bool:
    names = (f"{prefix}_offsets", f"{prefix}_data")
    if all(file.find(name) is None for name in names):
        return False
    _column(file, names[0], _INTEGERS, num_edges + 1)
    _column(file, names[1], _INTEGERS)
    return True


def _column(file: Hdf5File, name: str, kinds: str, length: int | None = None) -> Hdf5Dataset:
    """Return a dataset that is one-dimensional, of one of numpy's `kinds`, and of the length given."""
    dataset = file.require(name)
    shape, dtype = dataset.shape, dataset.dtype
    where = f"{file.path}: dataset {name}: expected"
    if shape is None or len(shape) != 1:
        raise StorageError(f"{where} one dimension, found shape {shape}; write the file again")
    if dtype.kind not in kinds:
        kind = "integers" if kinds == _INTEGERS else "numbers"
        raise StorageError(f"{where} {kind}, found {one_line(dtype)}; write the file again")
    if length is not None and shape[0] != length:
        reason = "one more than the edges" if name.endswith("_offsets") else "as many as rel"
        raise StorageError(f"{where} {length} rows ({reason}), found {shape[0]}; write the file again")
    return dataset


@attrs.frozen
class _Rows:
    """A range of rows of an open bucket file."""

    file: Hdf5File
    start: int
    stop: int

    def integers(self, name: str, length: int) -> Tensor:
        return _read_range(_column(self.file, name, _INTEGERS, length), self.start, self.stop, torch.int64)

    def reals(self, name: str, length: int) -> Tensor:
        return _read_range(_column(self.file, name, _NUMBERS, length), self.start, self.stop, torch.float64)

    def features(self, prefix: str, length: int) -> FeatureLists:
        offsets_name, data_name = f"{prefix}_offsets", f"{prefix}_data"
        data = _column(self.file, data_name, _INTEGERS)
        dataset = _column(self.file, offsets_name, _INTEGERS, length + 1)
        offsets = _read_range(dataset, self.start, self.stop + 1, torch.int64)
        first, last = int(offsets[0]), int(offsets[-1])
        wrong = torch.nonzero(offsets[1:] < offsets[:-1])
        if first < 0 or last > data.num_rows or len(wrong):
            row = self.start + (int(wrong[0]) if len(wrong) else 0)
            raise StorageError(
                f"{self.file.path}: dataset {offsets_name}: row {row}: expected offsets that do not decrease, from 0 to"
                f" {data.num_rows} (the length of {data_name}), found {first} to {last}; write the file again"
            )
        features = _read_range(data, first, last, torch.int64)
        return FeatureLists(offsets=offsets - first, data=features)


def _read_range(dataset: Hdf5Dataset, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Read rows start to stop into a fresh tensor of `dtype`."""
    block = torch.empty(stop - start, dtype=dtype)
    buffer = block.numpy()
    if dataset.dtype == buffer.dtype:
        dataset.read_into(buffer, start)
        return block
    # HDF5 converts types in small strips, at a third of the speed of reading as it is and converting here.
    stored = np.empty(stop - start, dataset.dtype)
    dataset.read_into(stored, start)
    buffer[:] = stored
    return block


def _check_one_identity(path: Path, block: EdgeBlock, side: Side) -> None:
    """Refuse edges that name an entity where they also have features: PBG reads one and drops the other."""
    features = side.pick(block.lhs_features, block.rhs_features)
    if features is None:
        return
    ids = side.pick(block.lhs, block.rhs)
    wrong = torch.nonzero((ids != -1) & (features.offsets[1:] > features.offsets[:-1]))
    if len(wrong):
        row, name = int(wrong[0]), side.pick("lhs", "rhs")
        raise DataError(
            f"{path}: dataset {name}: row {block.start + row}: expected -1 (the edge has features in {name}d_data),"
            f" found {int(ids[row])}; write the file again with one or the other"
        )
