"""Scores of pairs of prepared rows in float64 by a compiled loop, for certified ranks: rows are read where they lie.

The fast path of `CertifiedComparator.scores_in_float64`, with its bound, which holds for any order of additions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pbgeval.jit import CompiledLoop, is_installed

PAIRS_WORTH_COMPILING = 1 << 12  # the first pairs for which numba is imported


def serves(query_KL: Tensor, candidate_CL: Tensor, num_pairs: int) -> bool:
    """Tell whether the loop scores so many pairs of some rows: on a CPU, in float32, and worth it."""
    if any(
        x.device.type != "cpu" or x.dtype is not torch.float32 or x.stride(-1) != 1 for x in (query_KL, candidate_CL)
    ):
        return False
    return (_PAIRS.is_loaded or num_pairs >= PAIRS_WORTH_COMPILING) and is_installed()


def sums(
    query_KL: Tensor, row_P: Tensor, candidate_CL: Tensor, column_P: Tensor, *, of_squares: bool
) -> tuple[Tensor, Tensor]:
    """Return the sum of the products of pairs, or of the squares of their differences, and that of the magnitudes.

    Args:
        query_KL: rows, of which the columns beyond a candidate's are not read.
        row_P: the row of each pair.
        candidate_CL: rows.
        column_P: the candidate of each pair.
        of_squares: which of the two.

    Returns:
        Two tensors of shape (P,), float64.
    """
    sums_2P = np.empty((2, row_P.numel()), np.float64)
    indices = (index.contiguous().numpy() for index in (row_P, column_P))
    _PAIRS(query_KL.numpy(), candidate_CL.numpy(), *indices, of_squares, sums_2P)
    sum_P, magnitude_P = torch.from_numpy(sums_2P)
    return sum_P, magnitude_P


def _pairs(query_KL, candidate_CL, row_P, column_P, of_squares, sums_2P):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    for pair in range(row_P.size):
        query_L, candidate_L = query_KL[row_P[pair]], candidate_CL[column_P[pair]]
        total, magnitude = np.float64(0), np.float64(0)
        for at in range(candidate_L.size):
            x, y = np.float64(query_L[at]), np.float64(candidate_L[at])
            term = (x - y) * (x - y) if of_squares else x * y
            total += term
            magnitude += abs(term)
        sums_2P[0, pair], sums_2P[1, pair] = total, magnitude


_PAIRS = CompiledLoop(_pairs, may_reorder=True)
