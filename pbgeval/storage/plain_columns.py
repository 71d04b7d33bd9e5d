"""Datasets whose pieces lie in their file as arrays of 32- or 64-bit integers -> rows of them, without HDF5.

Opening a file by HDF5 takes milliseconds, and h5py holds Python's lock while it reads; edges are read a bucket at a
time, so both count. Where each piece begins is noted when the file's header is checked. Whatever is not plain, or has
changed since, is left to HDF5, which reads all layouts and says what is wrong with a file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from pbgeval.storage.files_hdf5 import Hdf5Dataset, Hdf5File

_NUMBERS = (np.dtype(np.int32), np.dtype(np.int64))  # in this machine's byte order


@attrs.frozen
class PlainColumn:
    """Where the pieces of a dataset begin."""

    number: np.dtype[np.signedinteger[Any]]
    rows_per_piece: int
    offsets: tuple[int, ...]  # bytes

    @classmethod
    def of(cls, dataset: Hdf5Dataset) -> PlainColumn | None:
        """Return the pieces of a dataset; None if it has filters, other numbers, or no rows."""
        if dataset.dtype not in _NUMBERS or not dataset.num_rows:
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
