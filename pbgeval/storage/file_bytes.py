"""Part of a file -> memory that is allocated already, filled by several threads."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import torch

from pbgeval.errors import StorageError
from pbgeval.storage.text import unreadable

PIECE_BYTES = 1 << 24  # that a thread reads at a time
MAX_THREADS = 8


def read_into(path: Path, offset: int, values: np.ndarray) -> None:
    """Fill a contiguous array with the bytes of a file from an offset on.

    Raises:
        StorageError: the file is gone, cannot be read, or ends before.
    """
    memory = values.reshape(-1).view(np.uint8).data
    with unreadable(path, "cannot read the file"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:

            def read(start: int) -> int:
                stop = min(start + PIECE_BYTES, memory.nbytes)
                while start < stop and (count := os.preadv(descriptor, [memory[start:stop]], offset + start)):
                    start += count
                return stop - start

            starts = range(0, memory.nbytes, PIECE_BYTES)
            num_threads = min(torch.get_num_threads(), MAX_THREADS)
            if min(num_threads, len(starts)) < 2:
                missing = sum(map(read, starts))
            else:
                reads = [_pool(num_threads).submit(read, start) for start in starts]
                wait(reads)  # also where one fails: the others read from the file that is closed next
                missing = sum(of.result() for of in reads)
        finally:
            os.close(descriptor)
    if missing:
        end = offset + memory.nbytes
        raise StorageError(f"{path}: the file is truncated: {end - missing} of at least {end} bytes; copy it again")


@functools.cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="read")
