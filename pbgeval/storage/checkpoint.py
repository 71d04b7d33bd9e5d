"""Checkpoint folder -> its version and its embeddings, mapped from the file where its layout allows.

A mapped tensor shares the file's pages with every other worker of the host; writing to it changes a private copy only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import attrs
import numpy as np
import torch
from torch import Tensor

from pbgeval.errors import MismatchError, StorageError
from pbgeval.storage.arrays import MappedRows, NumberRows, Table, TensorRows
from pbgeval.storage.checkpoint_paths import embedding_path
from pbgeval.storage.hdf5 import ALIGNMENT_BYTES, Hdf5Dataset, Hdf5File, state_of
from pbgeval.storage.objects import Hdf5Source, open_hdf5_at, read_object_folder
from pbgeval.storage.text import listed, one_line

_EMBEDDINGS = "embeddings"
_RANGE_BYTES = 16 << 20  # of an object, at a time


@attrs.frozen
class EmbeddingFile(Hdf5Source):
    """The embeddings of one partition, header checked; `open_embeddings` makes them."""

    num_rows: int
    dimension: int
    offset: int | None  # byte of row 0 where all rows lie as torch maps them
    state: tuple[int, int] | None  # of the file when its header was checked; None: an object is read in its place

    def load(self) -> Tensor:
        """Return the embeddings, float32 (num_rows, dimension); not checked for NaN.

        Raises:
            StorageError: the file is gone, truncated, damaged, or no longer what its header was.
        """
        mapped = self._mapped()
        if mapped is not None:
            return mapped.load()
        with open_hdf5_at(self.path, self.of) as file:
            dataset = self._checked_dataset(file)
            offset = _mapped_offset(dataset)
            if offset is not None and self.of is None:
                return MappedRows(self.path, offset, self.num_rows, self.dimension).load()
            return self._read(dataset, torch.empty((self.num_rows, self.dimension), dtype=torch.float32), 0)

    def read_rows(self, start: int, stop: int) -> Tensor:
        """Return a copy of rows start to stop (exclusive), float32: memory follows the range, not the partition.

        Raises:
            StorageError: as `load`.
        """
        rows = torch.empty((stop - start, self.dimension), dtype=torch.float32)
        self.read_into(rows, start)
        return rows

    def read_into(self, rows_ND: Tensor, start: int) -> None:
        """Fill a tensor of the CPU, float32, with consecutive rows from row `start` on.

        Raises:
            StorageError: as `load`.
        """
        mapped = self._mapped()
        if mapped is not None:
            mapped.read_into(rows_ND, start)
            return
        with open_hdf5_at(self.path, self.of) as file:
            self._read(self._checked_dataset(file), rows_ND, start)

    def _mapped(self) -> MappedRows | None:
        """Return the rows without HDF5; None where it has to be asked: for other layouts, and if the file changed."""
        if self.offset is None or self.state is None:
            return None
        with suppress(OSError):  # HDF5 meets it, too, and reports it
            if state_of(os.stat(self.path)) == self.state:
                return MappedRows(self.path, self.offset, self.num_rows, self.dimension)
        return None

    def _checked_dataset(self, file: Hdf5File) -> Hdf5Dataset:
        shape = (self.num_rows, self.dimension)
        dataset = file.require(_EMBEDDINGS)
        if dataset.shape != shape or (_mapped_offset(dataset) is None) != (self.offset is None):
            raise StorageError(
                f"{self.path}: dataset {_EMBEDDINGS}: expected shape {shape} and the layout seen at the start,"
                f" found shape {dataset.shape}; the file changed during the run: start it again"
            )
        return dataset

    def _read(self, dataset: Hdf5Dataset, rows_ND: Tensor, start: int) -> Tensor:
        # An object is asked for a range at a time: its library has the bytes of one in memory once more.
        num_rows = rows_ND.shape[0]
        step = max(num_rows if self.of is None else _RANGE_BYTES // (4 * self.dimension), 1)
        for at in range(0, num_rows, step):
            dataset.read_into(rows_ND.numpy()[at : at + step], start + at)
        return rows_ND


PartitionRows: TypeAlias = EmbeddingFile | Table  # the vectors of one partition's entities


def num_bytes_of(rows: PartitionRows) -> int:
    """Return the bytes of what `load` returns."""
    dtype = rows.rows_ND.dtype if isinstance(rows, TensorRows) else torch.float32
    dtype = torch.float64 if isinstance(rows, NumberRows) else dtype
    return rows.num_rows * rows.dimension * dtype.itemsize


def open_embeddings(
    checkpoint_path: Path,
    entity_type: str,
    partition: int,
    version: int,
    *,
    dimension: int,
    num_rows: int | None,
) -> EmbeddingFile:
    """Check the header of a partition's embeddings; reads no values.

    Args:
        checkpoint_path: the checkpoint's folder.
        entity_type: name of the entity type.
        partition: its partition.
        version: as `read_checkpoint_version` returned it.
        dimension: the width that the config says.
        num_rows: the number of entities, None where it is not known.

    Raises:
        StorageError: the file is missing, unreadable, or holds another number of rows or columns.
    """
    path = embedding_path(checkpoint_path, entity_type, partition, version)
    folder = read_object_folder(checkpoint_path)
    of = None if folder is None else folder.in_place(path)
    if of is None and not path.exists():
        there = os.listdir(path.parent) if path.parent.is_dir() else []
        raise _missing(path, sorted(there if folder is None else folder.objects), entity_type, partition, version)
    with open_hdf5_at(path, of) as file:
        file.check_format_version()
        dataset = file.require(_EMBEDDINGS)
        shape, dtype = dataset.shape or (), dataset.dtype
        where = f"{file.path}: dataset {_EMBEDDINGS}: expected"
        if len(shape) != 2:
            raise StorageError(f"{where} a row of {dimension} numbers per entity, found shape {dataset.shape}")
        if dtype.kind != "f":
            raise StorageError(
                f"{where} floating-point numbers, found {one_line(dtype)}; write the file again as float32"
            )
    if shape[1] != dimension:
        raise MismatchError(
            f"{file.path}: the embeddings have dimension {shape[1]}, but the config says {dimension}; check dimension"
        )
    if num_rows not in (None, shape[0]):
        raise MismatchError(
            f"{file.path}: {shape[0]} embeddings, but entity_path has {num_rows} entities of type"
            f" {one_line(entity_type)} in partition {partition}; check entity_path and checkpoint_path"
        )
    return EmbeddingFile(file.path, int(shape[0]), dimension, _mapped_offset(dataset), file.state, of=of)


def _mapped_offset(dataset: Hdf5Dataset) -> int | None:
    """Return where rows lie that torch can map: float32 of this machine, in one aligned piece."""
    offset = dataset.offset
    is_aligned = offset is not None and offset % ALIGNMENT_BYTES == 0
    return offset if is_aligned and dataset.dtype == np.dtype(np.float32) else None


def _missing(path: Path, names: Sequence[str], entity_type: str, partition: int, version: int) -> MismatchError:
    """Return the error for a missing file; it says what the folder holds instead."""
    pattern = re.compile(rf"embeddings_{re.escape(entity_type)}_{partition}\.v([0-9]+)\.h5")
    versions = [str(version) for version in sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)]
    if versions:
        is_told = version or "checkpoint_version.txt" in names
        why = f"checkpoint_version.txt says {version}" if is_told else "no checkpoint_version.txt, which means 0"
        return MismatchError(
            f"{path}: no such file; the folder has version {listed(versions)} of these embeddings, but {why}; write the"
            " version to evaluate into checkpoint_version.txt"
        )
    found = listed([name for name in names if name.startswith("embeddings_")] or ["no embeddings"], 3)
    return MismatchError(
        f"{path}: no such file; the checkpoint has {found}; check the names and num_partitions of entities"
    )
