"""A text file of any size, plain or gzip -> its lines, with their numbers."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from pbgeval.errors import StorageError

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its end), one line in memory at a time.

    Raises:
        StorageError: the file cannot be opened or read, or a line is not UTF-8; says which.
    """
    number = 0
    try:
        with path.open("rb") as head:
            is_gzip = head.read(2) == _GZIP
        with gzip.open(path) if is_gzip else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                yield number, text.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        found = error.object[error.start : error.start + 1].hex()
        raise StorageError(f"{path}:{number}: expected UTF-8 text, found byte 0x{found}") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        where = f"{path}:{number + 1}" if number else f"{path}"
        raise StorageError(f"{where}: expected a text file that can be read, found: {reason}") from error
