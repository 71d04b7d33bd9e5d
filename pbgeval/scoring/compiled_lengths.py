"""Rows of candidates -> the squares of their lengths in float64 by a compiled loop, for the bounds of certified ranks.

What `torch.linalg.vector_norm` with a wider type does, but faster; sums are in any order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pbgeval.jit import CompiledLoop, is_installed

NUMBERS_WORTH_COMPILING = 1 << 20  # the first rows for which numba is imported


def serves(x_NL: Tensor) -> bool:
    """Tell whether the loop takes rows: two axes, on a CPU, in float32, without gaps, and worth it."""
    if x_NL.device.type != "cpu" or x_NL.dtype is not torch.float32 or x_NL.dim() != 2 or not x_NL.is_contiguous():
        return False
    return (_SQUARES.is_loaded or x_NL.numel() >= NUMBERS_WORTH_COMPILING) and is_installed()


def squared_lengths(x_NL: Tensor, taken_NL: Tensor | None = None) -> Tensor:
    """Return the square of each row's length, or of what is left of it when another row is taken away, float64 (N,)."""
    square_N = np.empty(x_NL.shape[0], np.float64)
    x = x_NL.numpy()
    _SQUARES(x, x[:0] if taken_NL is None else taken_NL.numpy(), square_N)
    return torch.from_numpy(square_N)


def _squares(x_NL, taken_NL, square_N):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    for row in range(x_NL.shape[0]):
        x_L, total = x_NL[row], np.float64(0)
        if taken_NL.shape[0]:
            taken_L = taken_NL[row]
            for at in range(x_L.size):
                left = np.float64(x_L[at]) - np.float64(taken_L[at])
                total += left * left
        else:
            for at in range(x_L.size):
                total += np.float64(x_L[at]) * np.float64(x_L[at])
        square_N[row] = total


_SQUARES = CompiledLoop(_squares, may_reorder=True)
