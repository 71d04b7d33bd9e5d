"""What fails while output is written -> `OutputError`; pieces -> a file that is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pbgeval import files
from pbgeval.errors import OutputError
from pbgeval.storage.text_files import one_line


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
