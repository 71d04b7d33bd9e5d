"""File -> a short text that changes when the file does, in the time of 64 small reads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from pbgeval.errors import StorageError
from pbgeval.storage.text import one_line, open_input

_NUM_BLOCKS = 64
_BLOCK_BYTES = 4096


def blocks_of(size: int) -> list[tuple[int, int]]:
    """Return which bytes (start, stop) of a file of some size the fingerprint covers."""
    if size <= _NUM_BLOCKS * _BLOCK_BYTES:
        return [(0, size)]
    starts = [index * (size - _BLOCK_BYTES) // (_NUM_BLOCKS - 1) for index in range(_NUM_BLOCKS)]
    return [(start, start + _BLOCK_BYTES) for start in starts]


def fingerprint_of(size: int, blocks: Iterable[bytes]) -> str:
    """Return the fingerprint of a file of which size and the bytes of `blocks_of` are known."""
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()[:32]


def fingerprint(path: Path) -> str:
    """Return 32 hex digits of the SHA-256 of a file's size and 64 evenly spread blocks of 4 KiB, both ends included.

    Files up to 256 KiB are read whole. In a larger file a change between the blocks that keeps the size is not seen:
    one value altered by hand, for instance. A file that was trained further, written again from other data, truncated
    or only partly copied is seen, as its blocks differ. Name, times and permissions do not enter.

    Raises:
        StorageError: the file is missing or cannot be read.
    """
    try:
        with open_input(path) as file:
            size = os.fstat(file.fileno()).st_size
            return fingerprint_of(
                size, [os.pread(file.fileno(), stop - start, start) for start, stop in blocks_of(size)]
            )
    except OSError as error:
        raise StorageError(f"{path}: cannot read the file: {one_line(error)}; check the path") from error
