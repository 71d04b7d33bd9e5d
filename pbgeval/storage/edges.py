"""Edge folder -> its bucket files; a bucket file and a range of rows -> edges.

Only the rows asked for are read, whatever the layout of the file, so memory follows the range and not the bucket
(a compressed file is unpacked chunk by chunk, so there it follows the range and one chunk).
A bucket without a file is empty. A file outside the declared partitions is refused: its edges would silently not count.
"""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from io import BytesIO, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
import numpy as np

from pbgeval.errors import DataError, Faults, StorageError
from pbgeval.notation import Bucket
from pbgeval.storage.hdf5 import Hdf5Dataset, Hdf5File, state_of
from pbgeval.storage.npy_files import open_npy
from pbgeval.storage.objects import Hdf5Source, RemoteObject, open_hdf5_at, read_object_folder
from pbgeval.storage.text import fingerprint, listed, one_line
from pbgeval.storage.writing import Check, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

# Datasets whose pieces lie in their file as arrays of 32- or 64-bit integers -> rows of them, without HDF5.
#
# Opening a file by HDF5 takes milliseconds, and h5py holds Python's lock while it reads; edges are read a bucket at a
# time, so both count. Where each piece begins is noted when the file's header is checked. Whatever is not plain, or has
# changed since, is left to HDF5, which reads all layouts and says what is wrong with a file.

_PLAIN_NUMBERS = (np.dtype(np.int32), np.dtype(np.int64))  # in this machine's byte order


@attrs.frozen
class PlainColumns:
    """The positions of a file's columns, and its size and time to detect changes."""

    columns: tuple[tuple[np.dtype, int, tuple[int, ...]], ...]  # numbers, rows per piece, byte of each piece
    state: tuple[int, int]  # of the file

    @classmethod
    def from_datasets(cls, file: Hdf5File, datasets: Sequence[Hdf5Dataset]) -> PlainColumns | None:
        """Return where datasets of an open file lie; None where one is not plain or HDF5 does not read by itself."""
        columns = [
            (dataset.dtype, dataset.rows_per_chunk or dataset.num_rows, offsets)
            for dataset in datasets
            if dataset.file is file and dataset.dtype in _PLAIN_NUMBERS and dataset.num_rows
            if (offsets := dataset.piece_offsets()) is not None
        ]
        if file.state is None or len(columns) < len(datasets):
            return None
        return cls(tuple(columns), file.state)

    def read(self, path: Path, start: int, stop: int) -> list[np.ndarray] | None:
        """Return rows start to stop of each column, int64; None where HDF5 has to be asked what is wrong."""
        try:
            with path.open("rb", buffering=0) as file:
                if state_of(os.fstat(file.fileno())) != self.state:
                    return None
                return [_read_plain(file, *column, start, stop) for column in self.columns]
        except (OSError, EOFError):  # HDF5 meets it, too, and reports it
            return None


def _read_plain(
    file: FileIO, number: np.dtype, rows_per_piece: int, offsets: Sequence[int], start: int, stop: int
) -> np.ndarray:
    numbers = np.empty(stop - start, number)
    row = start
    while row < stop:
        piece, place = divmod(row, rows_per_piece)
        part = numbers[row - start :][: rows_per_piece - place]
        file.seek(offsets[piece] + place * number.itemsize)
        if file.readinto(part.data.cast("B")) != part.nbytes:
            raise EOFError
        row += len(part)
    return numbers.astype(np.int64, copy=False)


_INTEGERS = "iu"  # numpy's kinds: signed, unsigned
_NUMBERS = "iuf"
_BUCKET_FILE = re.compile(r"edges_(0|[1-9][0-9]*)_(0|[1-9][0-9]*)\.h5")


def bucket_of_name(name: str) -> Bucket | None:
    """Return the bucket whose edges a file of this name holds, None if it is none."""
    match = _BUCKET_FILE.fullmatch(name)
    return None if match is None else Bucket(int(match[1]), int(match[2]))


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
    weight: Tensor | None = None  # float64 (E)
    lhs_features: FeatureLists | None = None
    rhs_features: FeatureLists | None = None
    time: Tensor | None = None  # int64 (E), not negative; None: not asked for

    @property
    def num_edges(self) -> int:
        """Number of rows in this block."""
        return len(self.rel)


_Lists: TypeAlias = tuple[np.ndarray, np.ndarray]  # offsets and data of `FeatureLists`


@attrs.frozen(eq=False)
class _Rows:
    """Rows of a file as arrays, checked. Torch is imported when a block of tensors is made of them, not to read ids."""

    start: int
    columns: Sequence[np.ndarray]  # lhs, rel, rhs, and the time if it was read
    weight: np.ndarray | None
    lhs_features: _Lists | None
    rhs_features: _Lists | None

    @property
    def ids(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        lhs, rel, rhs, *_ = self.columns
        return lhs, rel, rhs

    def block(self) -> EdgeBlock:
        from torch import from_numpy

        lhs, rel, rhs, *times = map(from_numpy, self.columns)
        weight = None if self.weight is None else from_numpy(self.weight)
        lhs_features, rhs_features = (
            None if lists is None else FeatureLists(*map(from_numpy, lists))
            for lists in (self.lhs_features, self.rhs_features)
        )
        return EdgeBlock(self.start, lhs, rel, rhs, weight, lhs_features, rhs_features, *times)


class _EdgeRows(ABC):
    """What reads rows of edges."""

    __slots__ = ()

    def read(self, start: int, stop: int) -> EdgeBlock:
        """Read rows start to stop (exclusive).

        Raises:
            StorageError: the file is gone, damaged, or no longer what its header was.
            DataError: an edge has both an entity and features on one side, a number is larger than int64 holds, or a
                time is negative.
        """
        return self._read(start, stop).block()

    def read_ids(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Read left entity, relation and right entity of rows start to stop, int64, without torch.

        Raises:
            EvalError: as `read`.
        """
        return self._read(start, stop).ids

    @abstractmethod
    def _read(self, start: int, stop: int) -> _Rows: ...


@attrs.frozen
class BucketFile(_EdgeRows, Hdf5Source):
    """A bucket's file whose header has been checked; `find_buckets` makes them."""

    bucket: Bucket
    num_edges: int
    has_weight: bool
    lhs_featurized: bool
    rhs_featurized: bool
    rows_per_chunk: int  # rows that are unpacked together, 1 if not compressed; each range read unpacks its chunks anew
    plain: PlainColumns | None = None  # lhs, rel, rhs (and time), where these are all and lie there as they are
    times: tuple[str, ...] = ()  # the dataset of times, if they are read

    def _read(self, start: int, stop: int) -> _Rows:
        columns = self.plain.read(self.path, start, stop) if self.plain is not None else None
        if columns is not None:
            return _checked(self.path, start, columns)
        with open_hdf5_at(self.path, self.of) as file:
            columns = [
                _read_range(_column(file, name, _INTEGERS, self.num_edges), start, stop)
                for name in ("lhs", "rel", "rhs", *self.times)
            ]
            weights = (
                _read_range(_column(file, "weight", _NUMBERS, self.num_edges), start, stop, np.float64)
                if self.has_weight
                else None
            )
            features = [
                _read_features(file, prefix, start, stop, self.num_edges) if is_featurized else None
                for prefix, is_featurized in (("lhsd", self.lhs_featurized), ("rhsd", self.rhs_featurized))
            ]
        return _checked(self.path, start, columns, weights, *features)


def bucket_path(edge_path: Path, bucket: Bucket) -> Path:
    """Return the path where PBG writes the edges of a bucket."""
    return edge_path / f"edges_{bucket.lhs}_{bucket.rhs}.h5"


def find_buckets(
    edge_path: Path, num_lhs: int, num_rhs: int, *, with_time: bool | None = False
) -> dict[Bucket, BucketFile]:
    """Open the header of every bucket file of a folder; buckets without a file are empty and not in the answer.

    Args:
        edge_path: the folder.
        num_lhs: the largest number of partitions of a type on the left of a relation.
        num_rhs: the largest number of partitions of a type on the right of a relation.
        with_time: whether edges must have times, which are read; None: they are read where there are any.

    Returns:
        The buckets in lexicographic order.

    Raises:
        StorageError: the folder is missing, holds no bucket file, or holds one beyond the partitions;
            or a header is wrong (one fault per file).
    """
    folder = read_object_folder(edge_path)
    try:
        names = sorted(os.listdir(edge_path) if folder is None else folder.objects)
    except FileNotFoundError as error:
        raise StorageError(f"{edge_path}: no such file or folder; check the path of the edges") from error
    except NotADirectoryError as error:
        raise StorageError(
            f"{edge_path}: expected a folder of buckets, found a file; number its edges with kgeval-dist import-graph "
            "--dictionary"
        ) from error
    except OSError as error:
        raise StorageError(f"{edge_path}: cannot read the folder: {one_line(error)}") from error
    found = sorted(bucket for name in names if (bucket := bucket_of_name(name)) is not None)
    beyond = [bucket_path(edge_path, of).name for of in found if of.lhs >= num_lhs or of.rhs >= num_rhs]
    expected = f"edges_<l>_<r>.h5 with l in 0..{num_lhs - 1} and r in 0..{num_rhs - 1}"
    if beyond:
        raise StorageError(
            f"{edge_path}: expected only {expected}, found {listed(beyond)}; check num_partitions of entities; beside a"
            " model of vectors by name, give the text or Parquet files of edges"
        )
    if not found:
        raise StorageError(f"{edge_path}: expected bucket files {expected}, found {listed(names)}; check edge_paths")
    buckets: dict[Bucket, BucketFile] = {}
    faults = Faults()
    for bucket in found:
        path = bucket_path(edge_path, bucket)
        with faults.noted(StorageError):
            of = None if folder is None else folder.in_place(path)
            buckets[bucket] = open_bucket(path, bucket, of, with_time=with_time)
    faults.raise_any(StorageError)
    return buckets


def open_bucket(
    path: Path, bucket: Bucket, of: RemoteObject | None = None, *, with_time: bool | None = False
) -> BucketFile:
    """Open the header of one bucket's file, or of the object that is read in its place; see `find_buckets`.

    Raises:
        StorageError: it is missing, cannot be read, or is not in PBG's format.
    """
    with open_hdf5_at(path, of) as file:
        file.check_format_version()
        if with_time is None:
            with_time = file.has("time") and file.find("time") is not None
        rel, times = _column(file, "rel", _INTEGERS), ("time",) if with_time else ()
        num_edges = rel.num_rows
        lhs, *others = (_column(file, name, _INTEGERS, num_edges) for name in ("lhs", "rhs", *times))
        columns = [lhs, rel, *others]
        has_weight = file.has("weight") and file.find("weight") is not None
        if has_weight:
            _column(file, "weight", _NUMBERS, num_edges)
        lhs_featurized, rhs_featurized = (_is_featurized(file, prefix, num_edges) for prefix in ("lhsd", "rhsd"))
        has_more = of is not None or has_weight or lhs_featurized or rhs_featurized
        return BucketFile(
            path,
            bucket,
            num_edges,
            has_weight,
            lhs_featurized,
            rhs_featurized,
            rows_per_chunk=max((column.rows_per_chunk or 1) if column.num_filters else 1 for column in columns),
            plain=None if has_more else PlainColumns.from_datasets(file, columns),
            of=of,
            times=times,
        )


def _is_featurized(file: Hdf5File, prefix: str, num_edges: int) -> bool:
    offsets, data = f"{prefix}_offsets", f"{prefix}_data"
    if all(not file.has(name) or file.find(name) is None for name in (offsets, data)):
        return False
    _column(file, offsets, _INTEGERS, num_edges + 1)
    _column(file, data, _INTEGERS)
    return True


def _column(file: Hdf5File, name: str, kinds: str, length: int | None = None) -> Hdf5Dataset:
    """Return a dataset that is one-dimensional, of one of numpy's `kinds`, and of the length given."""
    dataset = file.require(name)
    if len(dataset.shape or ()) != 1:
        fault = f"one dimension, found shape {dataset.shape}"
    elif dataset.dtype.kind not in kinds:
        fault = f"{'integers' if kinds == _INTEGERS else 'numbers'}, found {one_line(dataset.dtype)}"
    elif length not in (None, dataset.num_rows):
        reason = "one more than the edges" if name.endswith("_offsets") else "as many as rel"
        fault = f"{length} rows ({reason}), found {dataset.num_rows}"
    else:
        return dataset
    raise StorageError(f"{file.path}: dataset {name}: expected {fault}; write the file again")


def _read_features(file: Hdf5File, prefix: str, start: int, stop: int, num_edges: int) -> _Lists:
    offsets_name, data_name = f"{prefix}_offsets", f"{prefix}_data"
    data = _column(file, data_name, _INTEGERS)
    offsets = _read_range(_column(file, offsets_name, _INTEGERS, num_edges + 1), start, stop + 1)
    first, last = int(offsets[0]), int(offsets[-1])
    wrong = np.flatnonzero(offsets[1:] < offsets[:-1])
    if first < 0 or last > data.num_rows or len(wrong):
        row = start + (int(wrong[0]) if len(wrong) else 0)
        raise StorageError(
            f"{file.path}: dataset {offsets_name}: row {row}: expected offsets that do not decrease, from 0 to"
            f" {data.num_rows} (the length of {data_name}), found {first} to {last}; write the file again"
        )
    return offsets - first, _read_range(data, first, last)


def _read_range(
    dataset: Hdf5Dataset, start: int, stop: int, dtype: type[np.int64 | np.float64] = np.int64
) -> np.ndarray:
    """Read rows start to stop into a fresh array of `dtype`."""
    # HDF5 converts types in small strips, at a third of the speed of reading as it is and converting here.
    stored = np.empty(stop - start, dataset.dtype)
    dataset.read_into(stored, start)
    if dtype is np.int64:
        _check_size(f"{dataset.file.path}: dataset {dataset.name}", start, stored)
    return stored.astype(dtype, copy=False)


def _check_size(where: str, start: int, numbers: np.ndarray) -> None:
    """Refuse unsigned numbers that would become negative.

    Raises:
        DataError: see above; names the row, of which `start` is the first.
    """
    largest = np.iinfo(np.int64).max
    if numbers.dtype.kind == "u" and numbers.dtype.itemsize == 8 and numbers.size and numbers.max() > largest:
        at = np.argwhere(numbers > largest)[0]
        raise DataError(
            f"{where}: row {start + int(at[0])}: expected an integer up to 2^63 - 1, got {int(numbers[tuple(at)])}; "
            "write the ids of the model, and times from the first one"
        )


def _checked(
    path: Path,
    start: int,
    columns: Sequence[np.ndarray],
    weight: np.ndarray | None = None,
    lhs_features: _Lists | None = None,
    rhs_features: _Lists | None = None,
) -> _Rows:
    """Check columns: lhs, rel, rhs, and the time if it was read.

    Edges that name an entity where they also have features are refused: PBG reads one and drops the other.
    """
    lhs, _, rhs, *times = columns
    for name, ids, features in (("lhs", lhs, lhs_features), ("rhs", rhs, rhs_features)):
        if features is not None and (wrong := (ids != -1) & (np.diff(features[0]) > 0)).any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"{path}: dataset {name}: row {start + row}: expected -1 (the edge has features in {name}d_data),"
                f" found {int(ids[row])}; write the file again with one or the other"
            )
    for time in times:
        if bool((time < 0).any()):
            row = int(np.argmax(time < 0))
            raise DataError(
                f"{path}: time of row {start + row}: expected an integer from 0 to 2^63 - 1, got {int(time[row])}; "
                "count times from the first one"
            )
    return _Rows(start, columns, weight, lhs_features, rhs_features)


# Edges in an array, in memory or in a .npy file -> what a bucket file is: of a graph in one partition.

WHOLE = Bucket(0, 0)
FORM = "integers of shape (edges, 3): head, relation, tail; or (edges, 4): then the time"
FORM_WITH_TIME = "integers of shape (edges, 4): head, relation, tail, time"


@attrs.frozen(eq=False)
class ArrayEdges(_EdgeRows):
    """Edges that are numbers; those of a file are mapped anew wherever they are read."""

    path: Path  # of a file; else what errors call the array
    num_edges: int
    array_E3: np.ndarray | None = None  # None: read from the file
    has_time: bool = False  # in a fourth column
    bucket: Bucket = WHOLE
    rows_per_chunk: int = 1

    def _read(self, start: int, stop: int) -> _Rows:
        array_E3 = open_npy(self.path, _INTEGERS)[0] if self.array_E3 is None else self.array_E3
        _check_size(str(self.path), start, array_E3[start:stop])
        columns = [np.ascontiguousarray(of) for of in array_E3[start:stop].astype(np.int64).T]
        return _checked(self.path, start, columns)

    def fingerprint(self) -> str:
        """Return a short text that changes when the edges do."""
        if self.array_E3 is None:
            return fingerprint(self.path)
        return hashlib.sha256(np.ascontiguousarray(self.array_E3, np.int64).data).hexdigest()[:32]

    def in_memory(self) -> ArrayEdges:
        """Return the edges of a file as if they had been given in memory, so that their fingerprint is that of ids."""
        return attrs.evolve(self, array_E3=open_npy(self.path, _INTEGERS)[0])

    def save(self, path: Path, check: Check | None = None) -> None:
        """Write edges in memory as int64 into a .npy file, as `write_atomically` does.

        Raises:
            OutputError: it cannot be written.
        """
        array_E3, header = np.ascontiguousarray(self.array_E3, np.int64), BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array_E3))
        write_atomically(path, [header.getvalue(), array_E3.reshape(-1).view(np.uint8).data], check)


EdgeSource: TypeAlias = BucketFile | ArrayEdges
EdgeFiles: TypeAlias = Mapping[Bucket, EdgeSource]  # of one path
Array: TypeAlias = "np.ndarray | Tensor | Sequence[Sequence[int]]"


@attrs.frozen(eq=False)
class Edges:
    """Edges in memory, in place of the paths of a config.

    Each array has integers (edges, 3): head, relation, tail; or (edges, 4): then the time.

    Examples:
        >>> import pbgeval
        >>> def score(lhs, rel, rhs):
        ...     return -(lhs + 1 - rhs).abs().float()
        ...
        >>> model = pbgeval.edge_scorer(score, num_entities=5, num_relations=1)
        >>> edges = pbgeval.Edges([(1, 0, 3)], known=[[(1, 0, 2)]])  # (1, 0, 2) is known: 2 does not compete with 3
        >>> report = pbgeval.evaluate(pbgeval.EvalConfig(candidates="all"), model=model, edges=edges)
        >>> report["tail.mean_rank"], report.raw["tail.mean_rank"]
        (1.5, 2.5)
    """

    evaluated: Array
    known: Sequence[Array] = ()  # filtered out, as `filter_paths`: a list of arrays
    train: Sequence[Array] = ()  # as `train_paths`

    def by_name(self) -> dict[str, dict[str, ArrayEdges]]:
        """Return what stands for each key of a config: arrays by names that errors and reports use.

        Raises:
            DataError: an array is of the wrong form.
        """
        from torch import Tensor

        arrays: dict[str, tuple[str, Sequence[Array]]] = {
            "edge_paths": ("edges", [self.evaluated]),
            "filter_paths": ("known edges", self.known),
            "train_paths": ("training edges", self.train),
        }
        named: dict[str, dict[str, ArrayEdges]] = {}
        for key, (label, of_key) in arrays.items():
            if isinstance(of_key, np.ndarray | Tensor) and of_key.ndim == 2:
                raise DataError(f"{label}: expected a list of arrays, got one array; write [array]")
            named[key] = {}
            for index, edges in enumerate(of_key):
                name = f"{label} {index}" if index else label
                array_E3 = edges.detach().cpu().numpy() if isinstance(edges, Tensor) else np.asarray(edges)
                if not array_E3.size:
                    array_E3 = np.empty((0, 4), np.int64)
                has_time = _check_array(array_E3, name)
                named[key][name] = ArrayEdges(Path(name), len(array_E3), array_E3, has_time)
        return named


def fingerprints_of(files: EdgeFiles) -> dict[str, str]:
    """Return a short text for each bucket that changes when its edges do."""
    return {f"{bucket.lhs}_{bucket.rhs}": file.fingerprint() for bucket, file in sorted(files.items())}


def edges_of_file(path: Path) -> ArrayEdges:
    """Open a .npy file of edges.

    Raises:
        StorageError: it is none, or holds no integers.
        DataError: not three to an edge, or four with its time.
    """
    array_E3, _ = open_npy(path, _INTEGERS)
    return ArrayEdges(path, array_E3.shape[0], has_time=_check_array(array_E3, str(path)))


def _check_array(array_E3: np.ndarray, label: str) -> bool:
    """Refuse what is no array of edges; return whether they have times."""
    if array_E3.ndim != 2 or array_E3.shape[1] not in (3, 4) or array_E3.dtype.kind not in _INTEGERS:
        kind, shape = array_E3.dtype.kind, array_E3.shape
        hints = (
            (kind in "USO", "; pass row ids, not names or a path (evaluate_files takes files of edges by name)"),
            (len(shape) == 2 and shape[1] not in (3, 4) and shape[0] in (3, 4), "; transpose it: .T"),
            (kind == "f", "; if these are row ids, use .astype('int64')"),
        )
        advice = "".join(hint for is_meant, hint in hints if is_meant)
        raise DataError(f"{label}: expected {FORM}, got {array_E3.dtype} of shape {shape}{advice}")
    return bool(array_E3.shape[1] == 4)
