"""Blocks of scores on a CPU -> counts, by compiled loops: each score is read once, from cache.

The fast path of `general` and `known`; a property test holds the two to the same integers. Loading numba takes half a
second, so a process begins with the general path and small blocks.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pbgeval.jit import CompiledLoop, is_installed
from pbgeval.stats.ranks import RankCounts

CELLS_WORTH_COMPILING = 1 << 18  # of the first block for which numba is imported


def serves(scores_KC: Tensor, num_queries: int) -> bool:
    """Tell whether the compiled loops take a block: on a CPU, columns next to each other, and worth it."""
    if scores_KC.device.type != "cpu" or (scores_KC.stride(1) != 1 and scores_KC.shape[1] > 1):
        return False
    return (_COMPARE.is_loaded or num_queries * scores_KC.shape[1] >= CELLS_WORTH_COMPILING) and is_installed()


def load(dtype: torch.dtype = torch.float32) -> None:
    """Import numba and load (at first compile) the loops for scores of one type, which the first block does else."""
    none = torch.empty(0, dtype=torch.int64)
    scores = torch.empty((0, 0), dtype=dtype)
    true = torch.empty(0, dtype=dtype)
    count_rows(scores, none, true, true)
    count_known_rows(scores, (true, true), none, none, (none, none))


def count_rows(scores_KC: Tensor, row_Q: Tensor, true_Q: Tensor, low_Q: Tensor) -> tuple[Tensor, Tensor]:
    """Count for each query the scores of its row that are higher than its true score, and those that tie with it.

    Args:
        scores_KC: a block that `serves` takes.
        row_Q: row of each query.
        true_Q: its true score, in the type of the scores.
        low_Q: scores from here up to the true score tie with it; usually that score again.

    Returns:
        (better_Q, tied_Q), int64.
    """
    num_queries, num_columns = row_Q.numel(), scores_KC.shape[1]
    counts_2Q = np.zeros((2, num_queries), np.int64)
    high, low = true_Q.contiguous().numpy(), low_Q.contiguous().numpy()
    _COMPARE(_flat(scores_KC), scores_KC.stride(0), num_columns, row_Q.numpy(), high, low, counts_2Q)
    better_Q, tied_Q = torch.from_numpy(counts_2Q)
    return better_Q, tied_Q


def count_known_rows(
    scores_KC: Tensor,
    true_and_low_Q: tuple[Tensor, Tensor],
    row_Q: Tensor,
    own_column_Q: Tensor,
    known: tuple[Tensor, Tensor],
) -> RankCounts:
    """Do what `known.count_known` does, for a block that `serves` takes."""
    high, low = (of_query.contiguous().numpy() for of_query in true_and_low_Q)
    row_P, column_P = (index.contiguous().numpy() for index in known)
    start_R = np.searchsorted(row_P, np.arange(scores_KC.shape[0] + 1))
    counts_3Q = np.zeros((3, row_Q.numel()), np.int64)
    _COMPARE_KNOWN(
        _flat(scores_KC),
        scores_KC.stride(0),
        row_Q.numpy(),
        high,
        low,
        own_column_Q.numpy(),
        start_R,
        column_P,
        np.empty(column_P.size, high.dtype),
        counts_3Q,
    )
    return RankCounts(*torch.from_numpy(counts_3Q))


def _flat(scores_KC: Tensor) -> np.ndarray:
    """Return the memory of a block from its first to its last score."""
    num_rows, num_columns = scores_KC.shape
    length = (num_rows - 1) * scores_KC.stride(0) + num_columns if num_rows and num_columns else 0
    flat: np.ndarray = scores_KC.as_strided((length,), (1,)).numpy()
    return flat


def _compare(flat, stride, num_columns, row_Q, true_Q, low_Q, counts_2Q):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    one, zero = true_Q.dtype.type(1), true_Q.dtype.type(0)
    for query in range(row_Q.size):
        start = row_Q[query] * stride
        scores_C = flat[start : start + num_columns]
        true, low = true_Q[query], low_Q[query]
        better, at_least = zero, zero  # in the scores' own type: integers would take twice the registers
        for column in range(num_columns):  # an iterator over the scores, or no slice, is not vectorised
            score = scores_C[column]
            better += one if score > true else zero
            at_least += one if score >= low else zero
        counts_2Q[0, query] = np.int64(better)
        counts_2Q[1, query] = np.int64(at_least - better)


def _compare_known(flat, stride, row_Q, true_Q, low_Q, own_Q, start_R, column_P, score_P, counts_3Q):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    one, zero = true_Q.dtype.type(1), true_Q.dtype.type(0)
    for row in range(start_R.size - 1):
        for entry in range(start_R[row], start_R[row + 1]):
            score_P[entry] = flat[row * stride + column_P[entry]]
    for query in range(row_Q.size):
        first, stop = start_R[row_Q[query]], start_R[row_Q[query] + 1]
        num_known, true, low, own = stop - first, true_Q[query], low_Q[query], own_Q[query]
        scores_K = score_P[first:stop]
        better, at_least = zero, zero
        for entry in range(num_known):
            score = scores_K[entry]
            better += one if score > true else zero
            at_least += one if score >= low else zero
        counts_3Q[0, query] = np.int64(better)
        counts_3Q[1, query] = np.int64(at_least - better)
        counts_3Q[2, query] = num_known
        while first < stop:  # where the true entity is or would be
            middle = (first + stop) // 2
            if column_P[middle] < own:
                first = middle + 1
            else:
                stop = middle
        if first < start_R[row_Q[query] + 1] and column_P[first] == own:
            counts_3Q[0, query] -= 1 if score_P[first] > true else 0
            counts_3Q[1, query] -= 1 if low <= score_P[first] <= true else 0
            counts_3Q[2, query] -= 1


_COMPARE = CompiledLoop(_compare, may_reorder=True)
_COMPARE_KNOWN = CompiledLoop(_compare_known, may_reorder=True)
