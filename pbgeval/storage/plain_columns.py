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
import h5py
import numpy as np
import torch
from torch import Tensor

_NUMBERS = (np.dtype(np.int32), np.dtype(np.int64))  # in this machine's byte order
_MOST_PIECES = 1024  # of a column: beyond, noting them takes longer than HDF5 does


@attrs.frozen
class PlainColumn:
    """Where the pieces of a dataset begin."""

    number: np.dtype[np.signedinteger[Any]]
    rows_per_piece: int
    offsets: tuple[int, ...]  # bytes; none: no row was ever written
    fill: int = 0  # what rows hold that were never written

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> PlainColumn | None:
        """Return the pieces of a dataset; None if it has filters, other numbers, or pieces that were never written."""
        if dataset.dtype not in _NUMBERS or dataset.is_virtual or dataset.external or not len(dataset):
            return None
        if dataset.chunks is None:
            if dataset.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS:
                return None  # inside the header
            offset = dataset.id.get_offset()
            offsets_of_one = () if offset is None else (offset,)
            return cls(dataset.dtype, len(dataset), offsets_of_one, int(dataset.fillvalue))
        rows = dataset.chunks[0]
        num_pieces = -(-len(dataset) // rows)
        if num_pieces > _MOST_PIECES or dataset.id.get_create_plist().get_nfilters():
            return None
        offsets: dict[int, int] = {}
        for number in range(dataset.id.get_num_chunks()):
            piece = dataset.id.get_chunk_info(number)
            offsets[piece.chunk_offset[0] // rows] = piece.byte_offset
        if sorted(offsets) != list(range(num_pieces)):
            return None
        return cls(dataset.dtype, rows, tuple(offsets[number] for number in range(num_pieces)))

    def read(self, descriptor: int, start: int, stop: int) -> Tensor | None:
        """Return rows start to stop, int64; None where the file ends before."""
        if not self.offsets:
            return torch.full((stop - start,), self.fill, dtype=torch.int64)
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
    def of(cls, file: h5py.File, datasets: Sequence[h5py.Dataset]) -> PlainColumns | None:
        """Return where datasets of an open file lie; None where one is not plain or HDF5 does not read by itself."""
        if file.id.get_access_plist().get_driver() != h5py.h5fd.SEC2:
            return None
        columns = [PlainColumn.of(dataset) for dataset in datasets]
        plain = tuple(column for column in columns if column is not None)
        if len(plain) < len(columns):
            return None
        stat = os.fstat(file.id.get_vfd_handle())
        return cls(plain, stat.st_size, stat.st_mtime_ns)

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
