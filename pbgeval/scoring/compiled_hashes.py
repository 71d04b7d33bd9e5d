"""Hashes of rows by a compiled loop: the fast path of `twins.row_hashes` on a CPU, with the same bits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pbgeval.jit import CompiledLoop, is_installed

MULTIPLIER = -7046029254386353131  # 2^64 / golden ratio, as int64
NUMBERS_WORTH_COMPILING = 1 << 20  # of the first rows for which numba is imported
ROWS_AT_A_TIME = 8  # each step of a hash waits for the one before, so a core does those of several rows at once


def serves(prepared_ND: Tensor) -> bool:
    """Tell whether the loop takes some rows: on a CPU, next to each other, and worth it."""
    if prepared_ND.device.type != "cpu" or not prepared_ND.is_contiguous():
        return False
    return (_HASH.is_loaded or prepared_ND.numel() >= NUMBERS_WORTH_COMPILING) and is_installed()


def load() -> None:
    """Import numba and load (at first compile) the loop for float32, which the first rows do else."""
    if is_installed():
        row_hashes(torch.empty((0, 0)))


def row_hashes(prepared_ND: Tensor) -> Tensor:
    """Return the hashes of rows that `serves` takes, int64 (N,)."""
    bits_ND = prepared_ND.view(torch.int32 if prepared_ND.dtype is torch.float32 else torch.int64).numpy()
    hash_N = np.zeros(bits_ND.shape[0], np.int64)
    _HASH(bits_ND, np.iinfo(bits_ND.dtype).min, hash_N)
    return torch.from_numpy(hash_N)


def _hash(bits_ND, negative_zero, hash_N):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    num_rows, dimension = bits_ND.shape
    hash_R = np.empty(ROWS_AT_A_TIME, np.int64)
    for start in range(0, num_rows, ROWS_AT_A_TIME):
        if start + ROWS_AT_A_TIME <= num_rows:
            hash_R[:] = 0
            for column in range(dimension):
                for row in range(ROWS_AT_A_TIME):
                    bits = np.int64(bits_ND[start + row, column])
                    mixed = (hash_R[row] ^ (0 if bits == negative_zero else bits)) * np.int64(MULTIPLIER)
                    hash_R[row] = mixed ^ (mixed >> 29)
            hash_N[start : start + ROWS_AT_A_TIME] = hash_R
            continue
        for row in range(start, num_rows):
            mixed = np.int64(0)
            for column in range(dimension):
                bits = np.int64(bits_ND[row, column])
                mixed = (mixed ^ (0 if bits == negative_zero else bits)) * np.int64(MULTIPLIER)
                mixed ^= mixed >> 29
            hash_N[row] = mixed


_HASH = CompiledLoop(_hash)
