"""Vectors or numbers by row that a run keeps between its sweeps: in memory, or in a scratch folder of all workers."""

from __future__ import annotations

import math
import os

import numpy as np
import torch
from attrs import define, frozen
from torch import Tensor

from pbgeval.storage.transfers import sent
from pbgeval.storage.writing import ScratchFolder, write_all

_NUMPY: dict[torch.dtype, np.dtype] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.int64: np.dtype(np.int64),
}


@define(eq=False)
class MemoryRows:
    """Rows in this process's memory, or in that of its GPU: the rows that it returns are there.

    All of them, written at once, are kept as they are: they must not be changed later.
    """

    _rows_ND: Tensor

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> MemoryRows:
        """Return rows to be written."""
        return cls(torch.empty(shape, dtype=dtype, device=device))

    @property
    def is_on_gpu(self) -> bool:
        return self._rows_ND.device.type == "cuda"

    def write(self, start: int, rows_ND: Tensor) -> None:
        """Store consecutive rows, from row `start` on."""
        kinds = ((of.shape, of.stride(), of.dtype, of.device) for of in (self._rows_ND, rows_ND))
        if len({*kinds}) == 1:
            self._rows_ND = rows_ND
        else:
            self._rows_ND[start : start + rows_ND.shape[0]] = rows_ND

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows start to stop (exclusive)."""
        return self._rows_ND[start:stop]

    def take(self, rows: Tensor) -> Tensor:
        """Return a copy of some rows, in the order given."""
        return self._rows_ND.index_select(0, sent(rows, self._rows_ND.device))


@frozen
class ScratchRows:
    """Rows in a file that every worker writes a part of and reads."""

    scratch: ScratchFolder
    name: str
    shape: tuple[int, ...]  # a row may be one number
    dtype: torch.dtype
    is_on_gpu = False

    def create(self) -> None:
        """Make the file; one worker does, before any writes."""
        with self.scratch.file(self.name, os.O_CREAT | os.O_TRUNC) as descriptor:
            os.truncate(descriptor, self.shape[0] * self._row_bytes)

    @property
    def _row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def write(self, start: int, rows_ND: Tensor) -> None:
        """Store consecutive rows, from row `start` on."""
        if rows_ND.numel():
            data = np.ascontiguousarray(rows_ND.cpu().numpy()).data.cast("B")
            # Not through a map: a full disk must be an error, no signal.
            with self.scratch.file(self.name) as descriptor:
                write_all(descriptor, data, start * self._row_bytes)

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows start to stop (exclusive)."""
        path, shape = self.scratch.path / self.name, (stop - start, *self.shape[1:])
        values = np.fromfile(path, _NUMPY[self.dtype], math.prod(shape), offset=start * self._row_bytes)
        return torch.from_numpy(values.reshape(shape))

    def take(self, rows: Tensor) -> Tensor:
        """Return a copy of some rows, in the order given; the pages touched are given back at once."""
        if not rows.numel():
            return torch.empty((0, *self.shape[1:]), dtype=self.dtype)
        mapped = np.memmap(self.scratch.path / self.name, _NUMPY[self.dtype], mode="r", shape=self.shape)
        return torch.from_numpy(mapped[rows.numpy()])


Rows = MemoryRows | ScratchRows
