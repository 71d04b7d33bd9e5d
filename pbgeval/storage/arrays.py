"""Tables of vectors that are no checkpoint of PyTorch-BigGraph -> the rows of a partition, read when asked for.

    MappedRows   a piece of a file: an array of .npy, a record of torch.save
    ParquetRows  files of Parquet, decoded a group of rows at a time
    ShardedRows  tables that are the rows or the columns of a larger one
    TensorRows   a table in memory
    NumberRows   no vectors: each entity is its number, for models that are asked for scores by number

All have what `checkpoint.EmbeddingFile` has: `num_rows`, `dimension`, `load` (all rows, not checked for NaN),
`read_rows` (a copy of some: memory follows the range) and `fingerprint`, a short text that changes when the rows do.
So readers of partitions see no difference. `part` cuts partitions from a table on the fly.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from attrs import Factory, evolve, field, frozen
from torch import Tensor
from torch.nn.functional import normalize

from pbgeval.errors import StorageError
from pbgeval.storage.file_bytes import read_into
from pbgeval.storage.hdf5 import ALIGNMENT_BYTES, open_hdf5
from pbgeval.storage.npy_files import open_npy
from pbgeval.storage.parquet import ParquetRows
from pbgeval.storage.row_slice import RowSlice
from pbgeval.storage.text import fingerprint, joint_fingerprint, one_line, unreadable

BFLOAT16 = "<u2"  # numpy has no such type: the upper halves of float32


@frozen
class MappedRows:
    """Rows of one piece of a file, in one type of floats; columns that are missing are zeros."""

    path: Path
    offset: int  # bytes
    num_rows: int
    columns: int  # as the file has them
    dtype: str = "<f4"  # numpy's name, or BFLOAT16
    dimension: int = field(default=Factory(lambda self: self.columns, takes_self=True))  # columns of what is read

    def part(self, start: int, stop: int) -> MappedRows:
        begin = self.offset + start * self.columns * np.dtype(self.dtype).itemsize
        return evolve(self, offset=begin, num_rows=stop - start)

    def load(self) -> Tensor:
        """Return all rows, mapped where they lie as torch wants them.

        Raises:
            StorageError: the file is gone or has become shorter.
        """
        shape = (self.num_rows, self.columns)
        is_as_wanted = self.dtype == "<f4" and self.dimension == self.columns and self.offset % ALIGNMENT_BYTES == 0
        if not is_as_wanted or 0 in shape:
            return self.read_rows(0, self.num_rows)
        self._check_size()
        try:
            return torch.from_numpy(np.memmap(self.path, np.float32, mode="c", offset=self.offset, shape=shape))
        except OSError as error:  # no memory to map it into, too many open files
            raise StorageError(f"{self.path}: cannot map the file: {one_line(error)}") from error

    def read_rows(self, start: int, stop: int) -> Tensor:
        """Return a copy of rows start to stop (exclusive), float32.

        Raises:
            StorageError: the file is gone or has become shorter.
        """
        rows = torch.empty((stop - start, self.dimension), dtype=torch.float32)
        self.read_into(rows, start)
        return rows

    def read_into(self, rows_ND: Tensor, start: int) -> None:
        """Fill a tensor of the CPU, float32, with consecutive rows from row `start` on.

        Raises:
            StorageError: the file is gone or has become shorter.
        """
        self._check_size()
        dtype, rows = np.dtype(self.dtype), rows_ND.numpy()
        place = self.offset + start * self.columns * dtype.itemsize
        if dtype == rows.dtype and self.columns == self.dimension:
            read_into(self.path, place, rows)
            return
        values = np.empty((len(rows), self.columns), dtype)
        read_into(self.path, place, values)
        if self.dtype == BFLOAT16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        rows[:, self.columns :] = 0.0
        with np.errstate(over="ignore"):  # becomes infinite, and is refused as such
            rows[:, : self.columns] = values

    def _check_size(self) -> None:
        end = self.offset + self.num_rows * self.columns * np.dtype(self.dtype).itemsize
        with unreadable(self.path, "cannot open the file", "; check the path"):
            size = os.stat(self.path).st_size
        if size < end:
            raise StorageError(f"{self.path}: the file is truncated: {size} of at least {end} bytes; copy it again")

    def fingerprint(self) -> str:
        return joint_fingerprint(
            fingerprint(self.path), self.offset, self.num_rows, self.columns, self.dimension, self.dtype
        )


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

    def part(self, start: int, stop: int) -> TensorRows:
        return TensorRows(self.rows_ND[start:stop])

    def load(self) -> Tensor:
        return self.rows_ND.contiguous()

    def read_rows(self, start: int, stop: int) -> Tensor:
        return self.rows_ND[start:stop].clone()

    def fingerprint(self) -> str:
        return hashlib.sha256(self.rows_ND.contiguous().cpu().numpy().tobytes()).hexdigest()[:32]


@frozen
class NumberRows(RowSlice):
    """Consecutive numbers, as float64 (num_rows, 1): exact up to 2^53."""

    def read_rows(self, start: int, stop: int) -> Tensor:
        return torch.arange(self.first + start, self.first + stop, dtype=torch.float64).unsqueeze(1)

    def fingerprint(self) -> str:
        return f"{self.first}+{self.num_rows}"


@frozen
class Shard:
    """A table that is a part of a larger one, and where its first number belongs."""

    row: int
    column: int
    table: Table


@frozen
class ShardedRows(RowSlice):
    """Rows whose parts lie in several places; `sharded` makes them of shards that it has checked."""

    shards: tuple[Shard, ...]
    unit_norm: int = 0  # 1 or 2: each row is divided by its norm, as torch's `normalize` does

    def read_rows(self, start: int, stop: int) -> Tensor:
        """Return a copy of rows start to stop (exclusive), float32.

        Raises:
            StorageError: a file is gone, damaged or has become shorter.
        """
        rows = torch.empty((stop - start, self.dimension), dtype=torch.float32)
        start, stop = start + self.first, stop + self.first
        for shard in self.shards:
            low, high = max(start, shard.row), min(stop, shard.row + shard.table.num_rows)
            if low < high:
                columns = slice(shard.column, shard.column + shard.table.dimension)
                rows[low - start : high - start, columns] = shard.table.read_rows(low - shard.row, high - shard.row)
        return normalize(rows.double(), self.unit_norm).float() if self.unit_norm else rows

    def fingerprint(self) -> str:
        places = [(shard.row, shard.column, shard.table.fingerprint()) for shard in self.shards]
        return joint_fingerprint(places, self.first, self.num_rows, self.dimension, self.unit_norm)


def sharded(where: str, shards: Sequence[Shard], num_rows: int, dimension: int) -> ShardedRows:
    """Put the parts of a table together.

    Args:
        where: the table, for errors.
        shards: in any order; those of the same columns cover all rows.
        num_rows: of the whole table.
        dimension: its columns.

    Raises:
        StorageError: parts are missing or overlap.
    """
    ordered = sorted(shards, key=lambda shard: (shard.column, shard.row))
    row, column, width = num_rows, 0, 0  # what is covered: some rows of the columns from `column` on
    for shard in ordered:
        if row == num_rows:
            row, column, width = 0, column + width, shard.table.dimension
        if (shard.row, shard.column, shard.table.dimension) != (row, column, width):
            raise StorageError(
                f"{where}: expected the part from row {row:,}, column {column} on, found one from row {shard.row:,}, "
                f"column {shard.column}: parts are missing or overlap; save the model again"
            )
        row += shard.table.num_rows
    if (row, column + width) != (num_rows, dimension):
        raise StorageError(
            f"{where}: expected parts of a table of {num_rows:,} rows and {dimension} columns, found {row:,} rows and "
            f"{column + width} columns; save the model again"
        )
    return ShardedRows(num_rows, dimension, tuple(ordered))


# Of which consecutive rows can be a partition.
Table: TypeAlias = MappedRows | ParquetRows | ShardedRows | TensorRows | NumberRows


def path_of(table: object) -> Path | None:
    """Return the file in which a table begins; None if it is in memory, or no table of ours."""
    if isinstance(table, MappedRows):
        return table.path
    if isinstance(table, ParquetRows):
        return table.paths[0] if len(table.paths) == 1 else table.paths[0].parent
    return path_of(table.shards[0].table) if isinstance(table, ShardedRows) else None


def npy_rows(path: Path) -> MappedRows:
    """Open a table of vectors.

    Raises:
        StorageError: as `open_npy`, or it has not two dimensions.
    """
    array, offset = open_npy(path)
    if array.ndim != 2 or not math.prod(array.shape):
        raise StorageError(f"{path}: expected rows and columns of vectors, found shape {array.shape}")
    return MappedRows(path, offset, array.shape[0], array.shape[1], array.dtype.str)


def hdf5_rows(path: Path, name: str) -> MappedRows:
    """Open a dataset of vectors that lie in the file as they are.

    Raises:
        StorageError: as `open_hdf5`, or there is no such dataset, or it has another form.
    """
    with open_hdf5(path) as file:
        dataset = file.require(name)
        shape, dtype, offset = dataset.shape or (), dataset.dtype, dataset.offset
    # Two bytes may be any type of floats, which HDF5 would convert.
    if dtype.kind != "f" or dtype.itemsize < 4 or len(shape) != 2 or not math.prod(shape) or offset is None:
        found = f"{one_line(dtype)} of shape {shape}{'' if offset is not None else ' in chunks'}"
        raise StorageError(f"{path}: dataset {name}: expected float32 or float64 vectors in one piece, found {found}")
    return MappedRows(path, offset, shape[0], shape[1], dtype.str)
