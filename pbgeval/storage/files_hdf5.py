"""Path of an HDF5 file -> the open file, read-only and without locks.

A trainer may hold a file open for writing while we read it, so no lock is ever asked for and nothing is ever written.
Whatever the library raises about a file becomes a `StorageError` of one line: the file is the user's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import h5py
import numpy as np

from pbgeval.errors import StorageError
from pbgeval.reading import check_regular
from pbgeval.storage.text_files import listed, one_line

FORMAT_VERSION = 1  # what PBG writes into every file, and the only version there has been


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open `path` for reading, without a lock.

    Raises:
        StorageError: the file is missing, cannot be read, is truncated or is not HDF5.
    """
    try:
        check_regular(path)
        file = h5py.File(os.fspath(path), "r", locking=False)
    except OSError as error:
        raise StorageError(f"{path}: {_open_fault(path, error)}") from error
    with file:
        yield file


@contextmanager
def open_hdf5_stream(stream: IO[bytes], path: Path) -> Iterator[h5py.File]:
    """Open what a stream holds, as `open_hdf5` does; `path` is what faults call it.

    Raises:
        StorageError: it cannot be read, is truncated or is not HDF5.
    """
    try:
        file = h5py.File(stream, "r")
    except OSError as error:
        raise StorageError(
            f"{path}: expected an HDF5 file that can be opened, found: {one_line(error)}; check the path, copy it or"
            " write it again"
        ) from error
    with file:
        yield file


@contextmanager
def hdf5_faults(path: Path, what: str) -> Iterator[None]:
    """Turn what h5py raises while `what` (a dataset, say) is read from `path` into a `StorageError`.

    Wrap single reads in it, not computations: a `RuntimeError` of ours must stay a traceback.
    """
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise StorageError(
            f"{path}: {what}: expected data that can be read, found: {one_line(error)};"
            " the file is damaged or uses a filter that this h5py lacks: copy it or write it again"
        ) from error


def check_format_version(file: h5py.File, path: Path) -> None:
    """Refuse a file whose `format_version` is absent or not ours.

    Raises:
        StorageError: with the version expected and what was found.
    """
    with hdf5_faults(path, "attribute format_version"):
        found = file.attrs.get("format_version")
    expected = f"{path}: attribute format_version: expected {FORMAT_VERSION}"
    if found is None:
        raise StorageError(f"{expected}, found none; is this a file that PyTorch-BigGraph wrote?")
    if not isinstance(found, int | np.integer) or int(found) != FORMAT_VERSION:
        raise StorageError(f"{expected}, found {one_line(found)}; write the file again in that format")


def find_dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset | None:
    """Return the dataset `name`, or None where there is none (a group does not count)."""
    with hdf5_faults(path, f"dataset {name}"):
        found = file.get(name)
    return found if isinstance(found, h5py.Dataset) else None


def require_dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    """Return the dataset `name`.

    Raises:
        StorageError: there is none; names what the file holds.
    """
    dataset = find_dataset(file, path, name)
    if dataset is None:
        with hdf5_faults(path, "root group"):
            held = sorted(file)
        raise StorageError(f"{path}: expected a dataset {name}, found {listed(held)}; is this the right file?")
    return dataset


def _open_fault(path: Path, error: OSError) -> str:
    reason = one_line(error)
    if isinstance(error, FileNotFoundError):
        return "expected an HDF5 file, found no such file; check the path"
    if isinstance(error, IsADirectoryError):
        return "expected an HDF5 file, found a directory; check the path"
    if isinstance(error, PermissionError):
        return "expected a file that can be read, found no permission to read it; change its permissions"
    if "truncated file" in reason:
        size, end = _sizes(path, reason)
        return f"expected a complete HDF5 file{end}, found a truncated one{size}; copy it or write it again"
    if "file signature not found" in reason:
        return f"expected an HDF5 file, found another format{_sizes(path, reason)[0]}; check the path"
    return f"expected an HDF5 file that can be opened, found: {reason}; copy it or write it again"


def _sizes(path: Path, reason: str) -> tuple[str, str]:
    """Size of the file as it is, and as its header says where the library's message tells it."""
    try:
        size = f" of {path.stat().st_size} bytes"
    except OSError:
        size = ""
    _, _, stored = reason.partition("stored_eof = ")
    digits = stored.split(")")[0]
    return size, f" of {digits} bytes" if digits.isdigit() else ""
