"""The one module that writes files: a temporary name, fsync, rename.

A reader sees the old file or the new one, never half of one; a run that is killed leaves at most a temporary file.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

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


def remove_files(folder: Path, names: list[str]) -> None:
    """Remove the named files of a folder that exist."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


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
