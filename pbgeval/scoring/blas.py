"""torch's own matrix product as compiled loops call it: for one small block at a time, while its rows are in cache.

torch's builds for CPUs carry MKL and export `sgemm_`, which gives the bits of `torch.bmm` without a call of Python for
each block. Another library, or none, means that loops that need it are not used; the caller compares the bits.
Exact ranks need no bits, so they may also use `gemm_bf16bf16f32`.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from attrs import frozen

NUM_ARGUMENTS = 13  # of the routine, each an address
# Some by their place in an array of int64: a library with integers of 32 bits reads the lower half of each.
TRANSPOSED, PLAIN, COLUMNS, ROWS, INNER, COLUMN_STRIDE, ROW_STRIDE, SCORE_STRIDE = range(8)
FLOATS_PER_LINE = 16  # float32 numbers in a cache line
ONE, ZERO = 0, 1  # places of the factors, of the product and of what was there before


@frozen(eq=False)
class Gemm:
    """A routine, the bytes of a number that it multiplies, and how many threads it takes."""

    address: int
    itemsize: int
    _set_threads: Callable[[int], int]

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """Have the calling thread multiply alone, so that the bits are those of whole products."""
        before = self._set_threads(1)
        try:
            yield
        finally:
            self._set_threads(before)

    def multiplication(self, num_rows: int, num_columns: int, dimension: int, longest_inner: int) -> tuple[object, ...]:
        """Return what compiled loops hand the routine for queries (rows, D) and candidates (columns, D).

        Each thread needs its own. The routine counts columns first, so that the scores of candidates and queries in
        its order are ours in rows. It adds up so many products at a time as `longest_inner` says.
        """
        arguments = [ord("T"), ord("N"), num_columns, num_rows, dimension, dimension, dimension, num_columns]
        factors = np.array([1.0, 0.0], np.float32)
        return self.address, np.array(arguments, np.int64), factors, longest_inner, self.itemsize


def aligned_zeros(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return arrays of zeros, float32, that begin at cache lines, in one piece of memory.

    Torch aligns its arrays, too. But glibc cuts an aligned block out of a larger one and hands the rest to small
    arrays, so the next block does not fit there: the heap of a thread that multiplied block after block tripled.
    """
    sizes = [math.prod(of) for of in shapes]
    starts = np.cumsum([0, *(-(-size // FLOATS_PER_LINE) * FLOATS_PER_LINE for size in sizes)]).tolist()
    piece = np.zeros(starts[-1] + FLOATS_PER_LINE, np.float32)
    piece = piece[-piece.ctypes.data // 4 % FLOATS_PER_LINE :]
    return [piece[start:][:size].reshape(of) for start, size, of in zip(starts, sizes, shapes, strict=False)]


@functools.cache
def find_sgemm() -> Gemm | None:
    """Return the routine for float32; None where torch has none that can be called."""
    return _find("sgemm_", 4)


@functools.cache
def find_bfloat16_gemm() -> Gemm | None:
    """Return the routine for bfloat16 that adds in float32; None if not faster.

    On processors with AMX it took a third of the time of float32's. Its order of additions is its own.
    """
    has_amx: Callable[[], bool] = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)  # not in every release
    return _find("gemm_bf16bf16f32", 2) if has_amx() else None


def _find(name: str, itemsize: int) -> Gemm | None:
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        set_threads = library.MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):
        return None
    set_threads.argtypes, set_threads.restype = [ctypes.c_int], ctypes.c_int
    return None if address is None else Gemm(address, itemsize, set_threads)
