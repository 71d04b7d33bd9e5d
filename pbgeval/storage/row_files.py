"""Names and shapes of datasets -> an HDF5 file whose rows many processes fill at the same time.

HDF5 lets one process write. So one process makes the file with every dataset allocated and laid out in one piece,
closes it, and from then on any process writes its own rows where they lie, past the library: a dataset's offset in
the file, plus the row times its size. Whoever reads the file reads plain HDF5.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from attrs import frozen

from pbgeval.errors import OutputError, StorageError
from pbgeval.storage import writing as files
from pbgeval.storage.hdf5 import FORMAT_VERSION, Hdf5File, NewDataset, hdf5_pieces, open_hdf5
from pbgeval.storage.text import one_line

# What fails while output is written -> `OutputError`; pieces -> a file that is whole or not there.


@contextmanager
def output_faults(path: Path) -> Iterator[None]:
    """Turn what the system raises while `path` is written into an `OutputError`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise OutputError(
            f"{path}: expected to write this file, got: {reason}; make room or choose another --output"
        ) from error


def temporary_path(path: Path) -> Path:
    """Where a file is written before it takes its name; one process at a time writes one path."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def put_in_place(temporary: Path, path: Path, check: Callable[[], None] | None = None) -> None:
    """Give a written file its name, durably, replacing what was there.

    Args:
        temporary: the file that was written.
        path: its name.
        check: is called when all is on the disk, and may raise, as for `files.write_atomically`.
    """
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        files.system.sync(descriptor)
    finally:
        os.close(descriptor)
    if check is not None:
        check()
    files.system.rename(temporary, path)


def write_pieces(
    path: Path, size: int, pieces: Iterable[tuple[int, bytes]], check: Callable[[], None] | None = None
) -> None:
    """Write a file of some size, zeros but for some pieces, replacing what was there.

    Args:
        path: the file; folders are made as needed.
        size: its bytes.
        pieces: what is written at which byte.
        check: as for `put_in_place`.

    Raises:
        OutputError: it cannot be written (permissions, a full disk).
    """
    temporary = temporary_path(path)
    with output_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = files.system.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                os.truncate(descriptor, size)
                for offset, data in pieces:
                    files.write_all(descriptor, data, offset)
            finally:
                os.close(descriptor)
            put_in_place(temporary, path, check)
        finally:
            temporary.unlink(missing_ok=True)


def write_lines(path: Path, pieces: Iterable[str]) -> None:
    """Write a text file (UTF-8) piece by piece; nobody sees it before it is whole.

    What making a piece raises is passed on as it is, and leaves no file.

    Raises:
        OutputError: the folder cannot be made or the file not written (permissions, a full disk).
    """
    temporary = temporary_path(path)
    try:
        with output_faults(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = files.system.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            for piece in pieces:
                with output_faults(path):
                    files.write_all(descriptor, piece.encode("utf-8", "backslashreplace"))  # lone surrogates: no UTF-8
        finally:
            os.close(descriptor)
        with output_faults(path):
            put_in_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@frozen
class ColumnLayout:
    """A dataset to be made."""

    dtype: np.dtype
    fill: float = 0  # what a row holds until it is written
    row_shape: tuple[int, ...] = ()  # of one row: () for a number per row


@frozen
class _Place:
    """Where a dataset lies in its file."""

    dtype: np.dtype
    row_shape: tuple[int, ...]
    offset: int  # byte of the first row

    @property
    def row_size(self) -> int:
        """Bytes of a row."""
        return math.prod(self.row_shape) * self.dtype.itemsize


@frozen
class RowFile:
    """A file that was made; small and picklable, so that each worker gets a copy."""

    path: Path
    num_rows: int
    attributes: Mapping[str, int | str]
    _places: Mapping[str, _Place]

    @property
    def names(self) -> tuple[str, ...]:
        """The datasets, groups in front: `head/better`."""
        return tuple(self._places)

    def row_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one row of a dataset."""
        return self._places[name].row_shape

    def write(self, rows: int | np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        """Write rows of some datasets. Other processes may write other rows at the same time.

        Args:
            rows: the first row, of consecutive ones; or int64 (n), strictly increasing.
            columns: n rows for each dataset named, of the shape and a type that fits the dataset's.

        Raises:
            OutputError: the file cannot be written (gone, permissions, a full disk).
            ValueError: the rows or shapes are not those of the file.
        """
        runs = self._runs(rows, columns)
        with output_faults(self.path):
            descriptor = files.system.open(self.path, os.O_WRONLY)
            try:
                for name, values in columns.items():
                    place = self._places[name]
                    data = np.ascontiguousarray(values, place.dtype).reshape(-1).view(np.uint8).data
                    for first, position, length in runs:
                        start, stop = position * place.row_size, (position + length) * place.row_size
                        files.write_all(descriptor, data[start:stop], place.offset + first * place.row_size)
            finally:
                os.close(descriptor)

    def sync(self) -> None:
        """Wait until all that was written is on the disk.

        Raises:
            OutputError: it cannot be written.
        """
        with output_faults(self.path):
            descriptor = files.system.open(self.path, os.O_WRONLY)
            try:
                files.system.sync(descriptor)
            finally:
                os.close(descriptor)

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return rows start to stop (exclusive) of a dataset.

        Raises:
            StorageError: the file is gone, damaged, or no longer what it was.
        """
        place = self._places[name]
        rows = np.empty((stop - start, *place.row_shape), place.dtype)
        if rows.size:
            with open_hdf5(self.path) as file:
                file.require(name).read_into(rows, start)
        return rows

    def _runs(self, rows: int | np.ndarray, columns: Mapping[str, np.ndarray]) -> list[tuple[int, int, int]]:
        """Cut rows into runs of consecutive ones: (first row, position among the values, length)."""
        lengths = {np.shape(values)[0] for values in columns.values()}
        for name, values in columns.items():
            place = self._places[name]
            if np.shape(values)[1:] != place.row_shape or not np.can_cast(values.dtype, place.dtype, "same_kind"):
                found = f"{values.dtype} of shape {np.shape(values)[1:]}"
                raise ValueError(f"{name}: expected {place.dtype} of shape {place.row_shape} per row, got {found}")
        if len(lengths) != 1:
            raise ValueError(f"columns of different lengths: {sorted(lengths)}")
        (length,) = lengths
        runs = [(rows, 0, length)] if isinstance(rows, int) else _runs_of_rows(rows, length)
        if not length:
            return []
        if runs[0][0] < 0 or runs[-1][0] + runs[-1][2] > self.num_rows:
            raise ValueError(f"rows {runs[0][0]} to {runs[-1][0] + runs[-1][2]} of a file of {self.num_rows}")
        return runs


def _runs_of_rows(rows: np.ndarray, length: int) -> list[tuple[int, int, int]]:
    if rows.shape != (length,) or bool((rows[1:] <= rows[:-1]).any()):
        raise ValueError(f"{length} strictly increasing rows expected, got an array of shape {rows.shape}")
    starts = np.flatnonzero(np.diff(rows, prepend=rows[:1] - 2) != 1).tolist()
    stops = [*starts[1:], length]
    return [(int(rows[start]), start, stop - start) for start, stop in zip(starts, stops, strict=False)]


def create_row_file(
    path: Path,
    num_rows: int,
    layouts: Mapping[str, ColumnLayout],
    attributes: Mapping[str, int | str],
    check: Callable[[], None] | None = None,
) -> RowFile:
    """Make a file whose rows are still to be written, replacing what was there. One process does.

    Args:
        path: the file; folders are made as needed.
        num_rows: of every dataset.
        layouts: the datasets by name, groups in front.
        attributes: of the file, beside `format_version` and `num_rows`.
        check: is called just before the file takes its name, and may raise: what others have taken over stays.

    Raises:
        OutputError: it cannot be written (permissions, a full disk).
    """
    datasets = {
        name: NewDataset((num_rows, *layout.row_shape), layout.dtype, layout.fill) for name, layout in layouts.items()
    }
    size, pieces = hdf5_pieces({"format_version": FORMAT_VERSION, "num_rows": num_rows, **attributes}, datasets)
    write_pieces(path, size, pieces, check)
    return open_row_file(path, layouts, tuple(attributes))


def open_row_file(path: Path, layouts: Mapping[str, ColumnLayout], attributes: tuple[str, ...]) -> RowFile:
    """Open a file that `create_row_file` made; what is not in it need not be in `layouts`.

    Args:
        path: the file.
        layouts: the datasets that must be there; their fill is not looked at.
        attributes: those of the file to be read.

    Raises:
        StorageError: there is no such file, or it is not as described.
    """
    with open_hdf5(path) as file:
        found = {name: _attribute(file, name) for name in ("format_version", "num_rows", *attributes)}
        if found.pop("format_version") != FORMAT_VERSION:
            raise StorageError(f"{path}: attribute format_version: expected {FORMAT_VERSION}; evaluate again")
        num_rows = int(found.pop("num_rows"))
        places = {name: _place(file, name, num_rows, layout) for name, layout in layouts.items()}
    return RowFile(path, num_rows, found, places)


def _attribute(file: Hdf5File, name: str) -> int | str:
    value = file.attribute(name)
    if isinstance(value, np.integer):
        return int(value)
    if not isinstance(value, str):
        raise StorageError(
            f"{file.path}: expected an attribute {name}, found {one_line(value)}; did this program write it?"
        )
    return value


def _place(file: Hdf5File, name: str, num_rows: int, layout: ColumnLayout) -> _Place:
    dataset = file.require(name)
    shape, dtype, offset = dataset.shape, dataset.dtype, dataset.offset
    expected = (num_rows, *layout.row_shape)
    is_empty = math.prod(expected) == 0
    if shape != expected or dtype != layout.dtype or (offset is None and not is_empty):
        raise StorageError(
            f"{file.path}: dataset {name}: expected {layout.dtype} of shape {expected} in one piece, found {dtype} of"
            f" shape {shape}{' in pieces' if offset is None else ''}; did this program write it?"
        )
    return _Place(layout.dtype, layout.row_shape, offset or 0)
