"""File -> a short text that changes when the file does, in the time of 64 small reads."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pbgeval.errors import StorageError
from pbgeval.storage.text_files import one_line

_NUM_BLOCKS = 64
_BLOCK_BYTES = 4096


def fingerprint(path: Path) -> str:
    """Return 32 hex digits of the SHA-256 of a file's size and 64 evenly spread blocks of 4 KiB, both ends included.

    Files up to 256 KiB are read whole. In a larger file a change between the blocks that keeps the size is not seen:
    one value altered by hand, for instance. A file that was trained further, written again from other data, truncated
    or only partly copied is seen, as its blocks differ. Name, times and permissions do not enter.

    Raises:
        StorageError: the file is missing or cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            digest.update(size.to_bytes(8, "little"))
            if size <= _NUM_BLOCKS * _BLOCK_BYTES:
                file.seek(0)
                digest.update(file.read())
            else:
                for index in range(_NUM_BLOCKS):
                    file.seek(index * (size - _BLOCK_BYTES) // (_NUM_BLOCKS - 1))
                    digest.update(file.read(_BLOCK_BYTES))
    except OSError as error:
        raise StorageError(
            f"{path}: expected a file that can be read, found: {one_line(error)}; check the path"
        ) from error
    return digest.hexdigest()[:32]
