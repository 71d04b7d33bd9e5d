"""The one module that writes files: a temporary name, fsync, rename; and a run's scratch arrays.

A reader sees the old file or the new one, never half of one; a run that is killed leaves at most a temporary file.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from attrs import frozen

from pbgeval.errors import OutputError


def write_atomically(path: Path, content: str) -> None:
    """Write a text file (UTF-8), replacing what was there.

    Raises:
        OutputError: the folder cannot be made or the file not written (permissions, a full disk).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise OutputError(f"{path}: expected to write this file, got: {error.strerror or error}") from error


def move_files(source: Path, target: Path, names: list[str]) -> None:
    """Move the named files that exist from one folder to another, replacing those there; a source left empty goes."""
    for name in names:
        if (source / name).is_file():
            target.mkdir(parents=True, exist_ok=True)
            os.replace(source / name, target / name)
    if source.is_dir() and not any(source.iterdir()):
        source.rmdir()


def move_folders(source: Path, target: Path, names: list[str]) -> None:
    """Move the named folders that exist; a source left empty goes."""
    for name in names:
        if (source / name).is_dir():
            target.mkdir(parents=True, exist_ok=True)
            os.replace(source / name, target / name)
    if source.is_dir() and not any(source.iterdir()):
        source.rmdir()


def remove_folders(folder: Path, names: list[str]) -> None:
    """Remove the named folders that exist, with all that is in them."""
    for name in names:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)


def remove_files(folder: Path, names: list[str]) -> None:
    """Remove the named files of a folder that exist."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


@frozen
class ScratchFolder:
    """A folder of raw arrays that a run needs only while it lasts; many workers write, each its own files.

    An array is named; what a worker appends to a name goes to that worker's file, and `read` joins those of all.
    The folder is the run's own: who made it removes it.
    """

    path: Path
    writer: int  # this worker

    def append(self, name: str, values: np.ndarray) -> None:
        """Add values at the end of this worker's part of an array.

        Raises:
            OutputError: the folder cannot be written (permissions, a full disk).
        """
        path = self.path / f"{name}.{self.writer}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if values.size:
                with path.open("ab") as file:
                    file.write(np.ascontiguousarray(values).data.cast("B"))
        except OSError as error:
            raise OutputError(f"{path}: expected to write this scratch file, got: {error.strerror or error}") from error

    def read(self, name: str, dtype: np.dtype | type) -> np.ndarray:
        """Return what all workers appended to an array, in order of worker; empty where nobody did."""
        parts = [np.fromfile(path, dtype) for path in self._parts(name)]
        return np.concatenate([np.empty(0, dtype), *parts])

    def _parts(self, name: str) -> list[Path]:
        found = [path for path in self.path.glob(f"{name}.*") if path.suffix[1:].isdigit()]
        return sorted(found, key=lambda path: int(path.suffix[1:]))

    def create(self, name: str, shape: tuple[int, ...], dtype: np.dtype | type) -> None:
        """Make an array of a fixed shape that all workers may fill in parts; one worker makes it."""
        path = self.path / name
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(math.prod(shape) * np.dtype(dtype).itemsize)
        except OSError as error:
            raise OutputError(f"{path}: expected to write this scratch file, got: {error.strerror or error}") from error

    def fill(self, name: str, start: int, rows: np.ndarray) -> None:
        """Write rows of a created array, from row `start` on."""
        path = self.path / name
        if not rows.size:
            return
        rows = np.ascontiguousarray(rows)
        try:
            with path.open("r+b") as file:  # not through a map: a full disk must be an error, not a signal
                file.seek(start * (rows.nbytes // rows.shape[0]))
                file.write(rows.data.cast("B"))
        except OSError as error:
            raise OutputError(f"{path}: expected to write this scratch file, got: {error.strerror or error}") from error

    def rows(self, name: str, start: int, stop: int, row_shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Return rows `start` to `stop` of a created array."""
        row_size = math.prod(row_shape)
        count = (stop - start) * row_size
        offset = start * row_size * np.dtype(dtype).itemsize
        return np.fromfile(self.path / name, dtype, count, offset=offset).reshape(stop - start, *row_shape)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
