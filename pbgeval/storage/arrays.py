"""Tables of vectors that are no checkpoint of PyTorch-BigGraph -> the rows of a partition, read when asked for.

    MappedRows   a piece of a file: an array of .npy, a record of torch.save
    TensorRows   a table in memory
    NumberRows   no vectors: each entity is its number, for models that are asked for scores by number

All have what `checkpoint.EmbeddingFile` has, so who reads partitions does not know the difference; `part` cuts
partitions from a table on the fly.
"""

from __future__ import annotations

import hashlib
import math
import os
import tokenize
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.errors import DataError, StorageError
from pbgeval.notation import Bucket
from pbgeval.storage.edges import EdgeBlock
from pbgeval.storage.fingerprint import fingerprint
from pbgeval.storage.text import check_regular, one_line

# What numpy raises of a damaged header, which it parses as Python; OverflowError: of a shape of many digits.
_DAMAGED = (
    *(ValueError, EOFError, TypeError, OverflowError),
    *(SyntaxError, tokenize.TokenError, RecursionError, MemoryError),
)

ALIGNMENT_BYTES = 64  # as torch's own allocator places data: kernels may round otherwise on data that starts elsewhere


class PartitionRows(Protocol):
    """The vectors of one partition's entities."""

    @property
    def num_rows(self) -> int: ...
    @property
    def dimension(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """What `load` returns takes so much memory."""
        ...

    def load(self) -> Tensor:
        """Return all rows (num_rows, dimension); not checked for NaN."""
        ...

    def read_rows(self, start: int, stop: int) -> Tensor:
        """Return a copy of some rows: memory follows the range."""
        ...

    def fingerprint(self) -> str:
        """Return a short text that changes when the rows do."""
        ...


class Table(PartitionRows, Protocol):
    """Rows of which consecutive ones can be a partition."""

    def part(self, start: int, stop: int) -> Table:
        """Return rows start to stop (exclusive) as a table."""
        ...


@frozen
class MappedRows:
    """Rows of one piece of a file, in one type of floats; columns that are missing are zeros."""

    path: Path
    offset: int  # bytes
    num_rows: int
    columns: int  # as the file has them
    dtype: str = "<f4"  # numpy's name
    dimension: int = 0  # columns of what is read

    def __attrs_post_init__(self) -> None:
        if not self.dimension:
            object.__setattr__(self, "dimension", self.columns)

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.dimension * torch.float32.itemsize

    def part(self, start: int, stop: int) -> MappedRows:
        row_bytes = self.columns * np.dtype(self.dtype).itemsize
        return evolve(self, offset=self.offset + start * row_bytes, num_rows=stop - start)

    def padded(self, dimension: int) -> MappedRows:
        """Return the same rows with zeros up to `dimension` columns."""
        return evolve(self, dimension=dimension)

    def load(self) -> Tensor:
        """Return all rows, mapped where they lie as torch wants them.

        Raises:
            StorageError: the file is gone or has become shorter.
        """
        is_as_wanted = self.dtype == "<f4" and self.dimension == self.columns and self.offset % ALIGNMENT_BYTES == 0
        if not (is_as_wanted and self.num_rows and self.columns):
            return self.read_rows(0, self.num_rows)
        self._check_size()
        shape = (self.num_rows, self.columns)
        return torch.from_numpy(np.memmap(self.path, np.float32, mode="c", offset=self.offset, shape=shape))

    def read_rows(self, start: int, stop: int) -> Tensor:
        """Return a copy of rows start to stop (exclusive), float32.

        Raises:
            StorageError: the file is gone or has become shorter.
        """
        self._check_size()
        dtype = np.dtype(self.dtype)
        size = (stop - start) * self.columns
        values = np.fromfile(self.path, dtype, size, offset=self.offset + start * self.columns * dtype.itemsize)
        rows = torch.zeros((stop - start, self.dimension))
        with np.errstate(over="ignore"):  # becomes infinite, and is refused as such
            rows.numpy()[:, : self.columns] = values.reshape(stop - start, self.columns)
        return rows

    def _check_size(self) -> None:
        end = self.offset + self.num_rows * self.columns * np.dtype(self.dtype).itemsize
        try:
            size = os.stat(self.path).st_size
        except OSError as error:
            raise StorageError(f"{self.path}: expected this file, found: {error.strerror}; check the path") from error
        if size < end:
            raise StorageError(
                f"{self.path}: expected at least {end} bytes, found a truncated file of {size}; copy it again"
            )

    def fingerprint(self) -> str:
        place = f"{self.offset} {self.num_rows} {self.columns} {self.dimension} {self.dtype}"
        return hashlib.sha256(f"{fingerprint(self.path)} {place}".encode()).hexdigest()[:32]


@frozen(eq=False)
class TensorRows:
    """Rows in memory."""

    rows_ND: Tensor

    @property
    def num_rows(self) -> int:
        return self.rows_ND.shape[0]

    @property
    def dimension(self) -> int:
        return self.rows_ND.shape[1]

    @property
    def num_bytes(self) -> int:
        return self.rows_ND.numel() * self.rows_ND.element_size()

    def part(self, start: int, stop: int) -> TensorRows:
        return TensorRows(self.rows_ND[start:stop])

    def load(self) -> Tensor:
        return self.rows_ND.contiguous()

    def read_rows(self, start: int, stop: int) -> Tensor:
        return self.rows_ND[start:stop].clone()

    def fingerprint(self) -> str:
        return hashlib.sha256(self.rows_ND.contiguous().cpu().numpy().tobytes()).hexdigest()[:32]


@frozen
class NumberRows:
    """Consecutive numbers, as float64 (num_rows, 1): exact up to 2^53."""

    first: int
    num_rows: int

    @property
    def dimension(self) -> int:
        return 1

    @property
    def num_bytes(self) -> int:
        return self.num_rows * torch.float64.itemsize

    def part(self, start: int, stop: int) -> NumberRows:
        return NumberRows(self.first + start, stop - start)

    def load(self) -> Tensor:
        return self.read_rows(0, self.num_rows)

    def read_rows(self, start: int, stop: int) -> Tensor:
        return torch.arange(self.first + start, self.first + stop, dtype=torch.float64).unsqueeze(1)

    def fingerprint(self) -> str:
        return f"{self.first}+{self.num_rows}"


def open_npy(path: Path, kinds: str = "f") -> tuple[np.memmap, int]:
    """Map an array of a .npy file that holds plain numbers; return it and the byte at which its values begin.

    Args:
        path: the file.
        kinds: numpy's letters of the types that are expected: f floats, i and u integers.

    Raises:
        StorageError: it is missing, no such file, holds objects, or its values are not laid out row by row.
    """
    try:
        with np.errstate(over="ignore"):  # of a shape that no memory holds, which is refused
            check_regular(path)
            array = np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise StorageError(f"{path}: expected a .npy file, found: {error.strerror or error}; check the path") from error
    except _DAMAGED as error:
        raise StorageError(f"{path}: expected a .npy file of numbers, found: {one_line(error)}") from error
    if array.dtype.kind not in kinds or array.dtype.byteorder == ">":
        expected = "floats" if kinds == "f" else "integers"
        raise StorageError(f"{path}: expected {expected} of this machine, found {array.dtype}; write it again")
    if not array.flags.c_contiguous:
        raise StorageError(f"{path}: expected values row by row, found Fortran order; write np.ascontiguousarray(...)")
    return array, array.offset


def npy_rows(path: Path) -> MappedRows:
    """Open a table of vectors.

    Raises:
        StorageError: as `open_npy`, or it has not two dimensions.
    """
    array, offset = open_npy(path)
    if array.ndim != 2 or not math.prod(array.shape):
        raise StorageError(f"{path}: expected rows and columns of vectors, found shape {array.shape}")
    return MappedRows(path, offset, array.shape[0], array.shape[1], array.dtype.str)


# Edges in an array, in memory or in a .npy file -> what a bucket file is: of a graph in one partition.

WHOLE = Bucket(0, 0)
FORM = "integers of shape (edges, 3): lhs, rel, rhs"


@frozen(eq=False)
class ArrayEdges:
    """Edges that are numbers; those of a file are mapped anew wherever they are read."""

    path: Path  # of a file; else what errors call the array
    num_edges: int
    array_E3: np.ndarray | None = None  # None: read from the file
    bucket: Bucket = WHOLE
    has_weight: bool = False
    lhs_featurized: bool = False
    rhs_featurized: bool = False
    rows_per_chunk: int = 1

    def read(self, start: int, stop: int) -> EdgeBlock:
        """Read rows start to stop (exclusive).

        Raises:
            StorageError: the file is gone or damaged.
        """
        if not 0 <= start <= stop <= self.num_edges:
            raise ValueError(f"rows {start} to {stop} of {self.num_edges} edges")
        array_E3 = open_npy(self.path, "iu")[0] if self.array_E3 is None else self.array_E3
        columns = array_E3[start:stop].astype(np.int64).T
        lhs, rel, rhs = (torch.from_numpy(np.ascontiguousarray(column)) for column in columns)
        return EdgeBlock(start, lhs, rel, rhs, None, None, None)

    def fingerprint(self) -> str:
        """Return a short text that changes when the edges do."""
        if self.array_E3 is None:
            return fingerprint(self.path)
        return hashlib.sha256(np.ascontiguousarray(self.array_E3, np.int64).tobytes()).hexdigest()[:32]


Array: TypeAlias = np.ndarray | Tensor | Sequence[Sequence[int]]


@frozen(eq=False)
class Edges:
    """Edges in memory, in place of the paths of a config; each array has integers (edges, 3): lhs, rel, rhs."""

    evaluated: Array
    filter: Sequence[Array] = ()  # known edges, as `filter_paths`: a list of arrays
    train: Sequence[Array] = ()  # as `train_paths`

    def by_name(self) -> dict[str, dict[str, ArrayEdges]]:
        """Return what stands for each key of a config: arrays by names that errors and reports use.

        Raises:
            DataError: an array is not as it should be.
        """
        names = {"edge_paths": "edges", "filter_paths": "filter edges", "train_paths": "training edges"}
        arrays: dict[str, Sequence[Array]] = {
            "edge_paths": [self.evaluated],
            "filter_paths": self.filter,
            "train_paths": self.train,
        }
        named: dict[str, dict[str, ArrayEdges]] = {}
        for key, of_key in arrays.items():
            labels = [f"{names[key]} {index}" if index else names[key] for index in range(len(of_key))]
            named[key] = {label: edges_of_array(array, label) for label, array in zip(labels, of_key, strict=True)}
        return named


def edges_of_array(edges: Array, label: str) -> ArrayEdges:
    """Take edges in memory.

    Raises:
        DataError: they are no integers, or not three to an edge.
    """
    array_E3 = edges.detach().cpu().numpy() if isinstance(edges, Tensor) else np.asarray(edges)
    if not array_E3.size:
        array_E3 = np.empty((0, 3), np.int64)
    _check(array_E3, label)
    return ArrayEdges(Path(label), array_E3.shape[0], array_E3)


def edges_of_file(path: Path) -> ArrayEdges:
    """Open a .npy file of edges.

    Raises:
        StorageError: it is none, or holds no integers.
        DataError: not three to an edge.
    """
    array_E3, _ = open_npy(path, "iu")
    _check(array_E3, str(path))
    return ArrayEdges(path, array_E3.shape[0])


def _check(array_E3: np.ndarray, label: str) -> None:
    if array_E3.ndim != 2 or array_E3.shape[1] != 3 or array_E3.dtype.kind not in "iu":
        raise DataError(f"{label}: expected {FORM}, got {array_E3.dtype} of shape {array_E3.shape}")
