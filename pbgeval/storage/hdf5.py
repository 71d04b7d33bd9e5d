"""Path of an HDF5 file -> what it holds, and the reverse; the only module that calls h5py.

A trainer may hold a file open for writing while we read it, so reading takes no lock and changes nothing.
Whatever the library raises about a file becomes a `StorageError` of one line: the file is the user's.

HDF5 reads data that is not there as fill values. So a dataset is checked when it is found: all its rows are stored in
this file, and the file is as large as it says. Links and rows in other files are refused: PyTorch-BigGraph writes none.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any

import attrs
import h5py
import numpy as np

from pbgeval.errors import StorageError
from pbgeval.storage.text import check_regular, listed, one_line
from pbgeval.storage.writing import Check, new_file, output_faults, write_all

FORMAT_VERSION = 1  # what PBG writes into every file, and the only version there has been

_MAX_PIECES = 1024  # of a column: beyond, noting where they lie takes longer than HDF5 does
# Deflate packs at most 1,032 bytes into one. Small datasets may claim any size.
_MAX_PACKED = 1100
_SMALL_BYTES = 1 << 24
ALIGNMENT_BYTES = 64  # as torch's own allocator places data: kernels may round otherwise on data that starts elsewhere
_FILL_BYTES = 1 << 20
_COPY = "copy the rows into this file"
_NOT_READ: dict[type[Exception], str] = {
    FileNotFoundError: "expected an HDF5 file, found no such file; check the path",
    IsADirectoryError: "expected an HDF5 file, found a directory; check the path",
    PermissionError: "expected a file that can be read, found no permission to read it; change its permissions",
}
# What h5py raises about files; SystemError: of names that are no UTF-8, while it lists them.
_ERRORS = (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, MemoryError, SystemError)


def state_of(stat: os.stat_result) -> tuple[int, int]:
    """Return what tells that a file has changed: its bytes, and when it was written."""
    return stat.st_size, stat.st_mtime_ns


@attrs.frozen(eq=False)
class Hdf5File:
    """An open file; `open_hdf5` makes them."""

    path: Path
    stat: os.stat_result | None  # None: a stream
    _file: h5py.File

    @property
    def state(self) -> tuple[int, int] | None:
        """What tells that the file has changed; None of a stream."""
        return None if self.stat is None else state_of(self.stat)

    def attribute(self, name: str) -> object:
        """Return an attribute of the file, None where there is none."""
        with _Faults(lambda: f"{self.path}: attribute {name}"):
            return h5py.AttributeManager(self._file).get(name)  # `attrs` opens the root group first

    def check_format_version(self) -> None:
        """Refuse a file whose `format_version` is absent or not ours.

        Raises:
            StorageError: with the version expected and what was found.
        """
        found = self.attribute("format_version")
        if not isinstance(found, int | np.integer) or int(found) != FORMAT_VERSION:
            none = "found none; if PyTorch-BigGraph did not write the file, set the attribute"
            fault = none if found is None else f"found {one_line(found)}; write the file again in that format"
            raise StorageError(f"{self.path}: attribute format_version: expected {FORMAT_VERSION}, {fault}")

    def names(self) -> list[str]:
        """Return the names in the root group."""
        with _Faults(lambda: f"{self.path}: root group"):
            return sorted(self._file)

    def has(self, name: str) -> bool:
        """Tell whether anything in the root group has a name."""
        with _Faults(lambda: f"{self.path}: {name}"):
            return bool(self._file.id.links.exists(name.encode()))

    def find(self, name: str) -> Hdf5Dataset | None:
        """Return the dataset `name`, or None if there is none (a group does not count).

        Raises:
            StorageError: a link is on the way to it, or rows of the dataset are not stored in the file.
        """
        with _Faults(lambda: f"{self.path}: dataset {name}"):
            item = self._found(name)
        return self._checked(item, name) if isinstance(item, h5py.h5d.DatasetID) else None

    def _checked(self, item: h5py.h5d.DatasetID, name: str) -> Hdf5Dataset:
        with _Faults(lambda: f"{self.path}: dataset {name}"):
            properties, kind = item.get_create_plist(), item.get_type()
            layout = properties.get_layout()
            dataset = Hdf5Dataset(
                self,
                name,
                item.shape,
                kind.dtype,
                rows_per_chunk=int(properties.get_chunk()[0]) if layout == h5py.h5d.CHUNKED else None,
                num_filters=int(properties.get_nfilters()),
                offset=item.get_offset() if layout == h5py.h5d.CONTIGUOUS else None,
                id=item,
            )
        dataset.check(kind, properties)
        return dataset

    def require(self, name: str) -> Hdf5Dataset:
        """Return the dataset `name`.

        Raises:
            StorageError: as `find`, or there is none; names what the file holds.
        """
        dataset = self.find(name)
        if dataset is None:
            raise StorageError(f"{self.path}: expected a dataset {name}, found {listed(self.names())}; check the path")
        return dataset

    def datasets(self, group: str) -> dict[str, Hdf5Dataset] | None:
        """Return every dataset below a group by its path from there, None if there is no such group.

        Raises:
            StorageError: as `find`, or there is a link in the group.
        """
        datasets: dict[str, Hdf5Dataset] = {}
        with _Faults(lambda: f"{self.path}: group {group}"):
            found = self._found(group)
            if not isinstance(found, h5py.Group):
                return None
            root = str(found.name).strip("/")
            pending, seen = [(root, found)], {found.id}
            while pending:  # not by paths from the root: groups may lie thousands deep
                place, within = pending.pop()
                for step in within:
                    path = f"{place}/{step}"
                    self._refuse_link(within, step, path)
                    item = _opened(within, step)
                    if isinstance(item, h5py.Group):
                        if item.id not in seen:  # a hard link may lead back to a group above
                            seen.add(item.id)
                            pending.append((path, item))
                    elif isinstance(item, h5py.h5d.DatasetID):
                        datasets[path.removeprefix(f"{root}/")] = self._checked(item, path)
        return datasets

    def _found(self, name: str) -> object:
        """Return what has a name, None if nothing has."""
        item: Any = self._file
        for step in filter(None, name.split("/")):
            if not isinstance(item, h5py.Group) or not item.id.links.exists(step.encode()):
                return None
            self._refuse_link(item, step, name)
            item = _opened(item, step)
        return item

    def _refuse_link(self, group: h5py.Group, step: str, name: str) -> None:
        """Refuse soft and external links, which HDF5 would follow to any file."""
        if group.id.links.get_info(step.encode()).type != h5py.h5l.TYPE_HARD:
            raise StorageError(f"{self.path}: {one_line(name)}: expected a dataset, found a link; {_COPY}")


def _opened(group: h5py.Group, step: str) -> object:
    """Return what a hard link leads to, as `group[step]` does; that asks for the file, too, which takes longer."""
    found = h5py.h5o.open(group.id, step.encode())
    return h5py.Group(found) if isinstance(found, h5py.h5g.GroupID) else found


@cache
def _type_in_files(dtype: np.dtype) -> h5py.h5t.TypeID:
    return h5py.h5t.py_create(dtype, logical=True)


@attrs.frozen(eq=False)
class Hdf5Dataset:
    """A dataset of an open file, all of whose rows are stored."""

    file: Hdf5File
    name: str
    shape: tuple[int, ...] | None  # None: of no shape, not even that of a number
    dtype: np.dtype
    rows_per_chunk: int | None  # rows that are stored together, None if all are
    num_filters: int  # that rows pass when they are read, compression for instance
    offset: int | None  # byte at which all rows lie as they are; None if not in one piece
    _id: h5py.h5d.DatasetID

    @property
    def num_rows(self) -> int:
        """Length of the first dimension."""
        return self.shape[0] if self.shape else 0

    @cached_property
    def _dataset(self) -> h5py.Dataset:
        return h5py.Dataset(self._id, readonly=True)

    @property
    def compression(self) -> str | None:
        """The name of the filter that unpacks rows, if they are packed."""
        return self._dataset.compression  # type: ignore[no-any-return]

    def attribute(self, name: str) -> object:
        """Return an attribute, None where there is none."""
        with _Faults(lambda: self._where):
            return self._dataset.attrs.get(name)

    def read_into(self, rows: np.ndarray, start: int = 0) -> None:
        """Read as many rows as there is room for, from row `start` on, in the type of `rows`."""
        if rows.size:  # HDF5 refuses empty selections of some layouts
            which: Any = np.s_[start : start + len(rows)] if rows.ndim else ()
            with _Faults(lambda: f"{self._where}, rows {start} to {start + len(rows)}" if rows.ndim else self._where):
                self._dataset.read_direct(rows, which)

    def piece_offsets(self) -> tuple[int, ...] | None:
        """Bytes at which pieces lie as they are; None if they do not, or are too many."""
        if self.rows_per_chunk is None:
            return None if self.offset is None else (self.offset,)
        num_pieces = -(-self.num_rows // self.rows_per_chunk)
        if num_pieces > _MAX_PIECES or self.num_filters:
            return None
        with _Faults(lambda: self._where):
            pieces = [self._id.get_chunk_info(number) for number in range(num_pieces)]
        return tuple(piece.byte_offset for piece in sorted(pieces, key=lambda piece: int(piece.chunk_offset[0])))

    def check(self, kind: h5py.h5t.TypeID, properties: h5py.h5p.PropDCID) -> None:
        """Refuse what HDF5 would read as fill values, and sizes that the file cannot have.

        Args:
            kind: its type in the file.
            properties: with which the dataset was made.

        Raises:
            StorageError: see above.
        """
        with _Faults(lambda: self._where):
            layout = properties.get_layout()
            is_plain = self.dtype.kind in "iuf" and kind.get_size() > 2  # bfloat16, for example, is converted
            if is_plain and kind != _type_in_files(self.dtype):
                raise StorageError(f"{self._where}: a type of numbers that numpy does not have; write the file again")
            num_bytes = kind.get_size() * math.prod(self.shape or ())
            if self.shape is None or not num_bytes or layout == h5py.h5d.COMPACT:
                return
            if layout == h5py.h5d.VIRTUAL or properties.get_external_count():
                raise StorageError(f"{self._where}: expected rows in this file, found rows in others; {_COPY}")
            if layout == h5py.h5d.CONTIGUOUS:
                self._check_stored(num_bytes, self._id.get_storage_size(), "bytes")
                self._check_size(num_bytes, self._id.get_offset() + num_bytes)
            else:
                chunks = properties.get_chunk()
                num_chunks = math.prod(-(-length // rows) for length, rows in zip(self.shape, chunks, strict=True))
                self._check_stored(num_chunks, self._id.get_num_chunks(), "chunks")
                num_bytes = num_chunks * math.prod(chunks) * kind.get_size()
                stored = self._id.get_storage_size()
                self._check_size(num_bytes, stored if self.num_filters else max(stored, num_bytes))

    def _check_stored(self, expected: int, found: int, unit: str) -> None:
        if found < expected:
            raise StorageError(
                f"{self._where}: {expected - found:,} of {expected:,} {unit} were never written, and would be read as"
                " fill values; write all rows"
            )

    def _check_size(self, num_bytes: int, end: int) -> None:
        """Compare what is declared with the size of the file and with what it takes on the disk."""
        stat = self.file.stat
        size = int(self._dataset.file.id.get_filesize()) if stat is None else stat.st_size
        blocks = 0 if stat is None else stat.st_blocks  # some file systems do not count them
        on_disk = min(size, blocks * 512) if blocks else size
        if end > size:
            raise StorageError(
                f"{self._where}: expected a file of at least {end:,} bytes, found {size:,}; copy it or write it again"
            )
        if num_bytes > _MAX_PACKED * on_disk + _SMALL_BYTES:
            raise StorageError(
                f"{self._where}: {num_bytes:,} bytes of rows in a file that takes {on_disk:,} on the disk;"
                " were they ever written?"
            )

    @property
    def _where(self) -> str:
        return f"{self.file.path}: dataset {one_line(self.name)}"


@contextmanager
def open_hdf5(path: Path, stream: IO[bytes] | None = None) -> Iterator[Hdf5File]:
    """Open `path` for reading, without a lock.

    Args:
        path: the file.
        stream: is read in its place; faults name the path all the same.

    Raises:
        StorageError: the file is missing, cannot be read, is truncated or is not HDF5.
    """
    status = None
    try:
        if stream is None:
            status = check_regular(path)
        file = h5py.File(_opened_to_read(path) if stream is None else stream, "r")
    except _ERRORS as error:
        fault = (
            _open_fault(status, error)
            if stream is None
            else f"expected an HDF5 file that can be opened, found: {one_line(error)}; "
            "check the path, copy it or write it again"
        )
        raise StorageError(f"{path}: {fault}") from error
    with file:
        yield Hdf5File(path, status, file)


@cache
def _access_to_read() -> h5py.h5p.PropFAID:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_file_locking(False, False)
    return access


def _opened_to_read(path: Path) -> h5py.h5f.FileID:
    """Open a file without a lock, as `h5py.File` does; that makes the properties anew for each."""
    return h5py.h5f.open(os.fsencode(path), h5py.h5f.ACC_RDONLY, _access_to_read())


@attrs.frozen
class ColumnLayout:
    """A dataset with a row for each row of a file, which is filled in later."""

    dtype: np.dtype
    fill: float = 0  # what a row holds until it is written
    row_shape: tuple[int, ...] | None = ()  # of one row: () for a number per row; None: whatever the file has
    offset: int = 0  # byte of the first row, once the file is made

    @property
    def row_size(self) -> int:
        """Bytes of a row."""
        return math.prod(self.row_shape or ()) * self.dtype.itemsize


def write_hdf5(
    path: Path,
    attributes: Mapping[str, int | str],
    *,
    values: Mapping[str, tuple[np.ndarray, Mapping[str, str]]] = {},
    num_rows: int = 0,
    layouts: Mapping[str, ColumnLayout] = {},
    groups: Sequence[str] = (),
    check: Check | None = None,
) -> dict[str, int]:
    """Write a file, as `new_file` does.

    It is laid out in memory: HDF5 reports a full disk late and in many lines, so it never meets one.

    Args:
        path: the file; folders are made as needed.
        attributes: of the file, beside `format_version`.
        values: datasets and their attributes by name, groups in front.
        num_rows: of each of `layouts`.
        layouts: datasets by name that get room for rows, which takes no memory.
        groups: are made first, and keep the order of what is in them.
        check: may raise before the file takes its name.

    Returns:
        Of each of `layouts`, the first byte of row 0 in the file; 0 if it takes no bytes.

    Raises:
        OutputError: it cannot be written (permissions, a full disk).
    """
    image = _SparseBytes()
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)  # of room for rows: in one piece, and nothing is written
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(image, "w", alignment_threshold=ALIGNMENT_BYTES, alignment_interval=ALIGNMENT_BYTES) as file:
        for group in groups:
            file.create_group(group, track_order=True)
        for name, (array, of_array) in values.items():
            file.create_dataset(name, data=array).attrs.update(of_array)
        rooms = {
            name: file.create_dataset(
                name, (num_rows, *(of.row_shape or ())), of.dtype, fillvalue=of.fill, dcpl=properties.copy()
            )
            for name, of in layouts.items()
        }
        offsets = {name: int(room.id.get_offset() or 0) for name, room in rooms.items()}
        file.attrs.update({"format_version": FORMAT_VERSION, **attributes})
    with output_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, check) as descriptor:
        os.truncate(descriptor, image.size)  # all other bytes are zeros
        for start, data in image.pieces:
            write_all(descriptor, data[: max(image.size - start, 0)], start)
        for name, layout in layouts.items():
            if layout.fill != 0:
                stop = offsets[name] + num_rows * layout.row_size
                block = np.full(_FILL_BYTES // layout.dtype.itemsize, layout.fill, layout.dtype).tobytes()
                for start in range(offsets[name], stop, len(block)):
                    write_all(descriptor, block[: stop - start], start)
    return offsets


@attrs.define(eq=False, slots=False)
class _SparseBytes(io.RawIOBase):
    """A file in memory, of which only what was written takes room."""

    size: int = 0
    pieces: list[tuple[int, bytes]] = attrs.field(factory=list)  # first byte and content, as they were written
    _place: int = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + (0, self._place, self.size)[whence]
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # of h5py or ours
        view = memoryview(buffer).cast("B")
        view[:] = bytes(len(view))
        for start, data in self.pieces:
            low, high = max(start, self._place), min(start + len(data), self._place + len(view))
            if low < high:
                view[low - self._place : high - self._place] = data[low - start : high - start]
        self._place += len(view)
        return len(view)

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        self.pieces.append((self._place, bytes(data)))
        self._place += len(data)
        self.size = max(self.size, self._place)
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        self.size = self._place if size is None else size
        return self.size


@attrs.frozen
class _Faults:
    """Turns what h5py raises while something is read into a `StorageError`; it says where: the file and what."""

    where: Callable[[], str]  # called only then: files are opened by the thousand

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, _ERRORS):
            raise StorageError(
                f"{self.where()}: expected data that can be read, found: {one_line(error)};"
                " the file is damaged or uses a filter that this h5py lacks: copy it or write it again"
            ) from error


def _open_fault(status: os.stat_result | None, error: Exception) -> str:
    reason = one_line(error)
    size = "" if status is None else f" of {status.st_size} bytes"
    if type(error) in _NOT_READ:
        return _NOT_READ[type(error)]
    if "truncated file" in reason:
        stored = "".join(f" of {found} bytes" for found in re.findall(r"stored_eof = (\d+)\)", reason)[:1])
        return f"expected a complete HDF5 file{stored}, found a truncated one{size}; copy it or write it again"
    if "file signature not found" in reason:
        return f"expected an HDF5 file, found another format{size}; check the path"
    return f"expected an HDF5 file that can be opened, found: {reason}; copy it or write it again"
