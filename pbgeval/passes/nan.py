"""Find scores that are not numbers, so that they are refused.

Finite rows can overflow: inf - inf is NaN, and NaN compares as false with everything, which would rank first. Kernels
that round a product and its sum only once return the first infinity instead, so a score also counts as NaN where its
positive terms and its negative terms both overflow, whatever the kernel returned. Most blocks are not searched: a bound
on the rows excludes overflow (no partial sum exceeds D' * max|q| * max|c|), or all scores have a finite sum.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pbgeval.scoring.comparators import RowComparator

LARGEST_SAFE_SCORE = 1e37  # a tenth of the largest float32, so that rounding cannot reach it
NUMBERS_AT_A_TIME = 1 << 22  # in float64, where overflow is searched for


def first_nan(
    comparator: RowComparator, query_BQD: Tensor, candidate_BCD: Tensor, scores_BQC: Tensor
) -> tuple[int, int, int] | None:
    """Return (chunk, query, candidate) of a score that is not a number, None if all are numbers."""
    if not scores_BQC.numel():
        return None
    if comparator.is_inner_product and scores_BQC.numel() < query_BQD.numel() + candidate_BCD.numel():
        if math.isfinite(float(scores_BQC.sum())):
            return None
    elif overflow_is_impossible(largest(query_BQD), largest(candidate_BCD), query_BQD.shape[-1]):
        return None
    if not comparator.multiplies:
        return _first(torch.isnan(scores_BQC))
    num_queries, dimension = query_BQD.shape[1:]
    num_candidates = candidate_BCD.shape[1]
    rows = max(NUMBERS_AT_A_TIME // (num_candidates + dimension), 1)
    chunks = max(rows // num_queries, 1)
    for chunk in range(0, scores_BQC.shape[0], chunks):
        for row in range(0, num_queries, rows):
            part = slice(chunk, chunk + chunks), slice(row, row + rows)
            scores_bqC = scores_BQC[part]
            nan_bqC = _overflows_both_ways(query_BQD[part], candidate_BCD[part[0]], scores_BQC.dtype)
            if comparator.is_inner_product:  # as compiled loops have it, whose scores are finite if their sum is
                nan_bqC &= ~torch.isfinite(scores_bqC)
            found = _first(nan_bqC | torch.isnan(scores_bqC))
            if found is not None:
                return chunk + found[0], row + found[1], found[2]
    return None


def first_nan_of_pairs(
    comparator: RowComparator, query_QD: Tensor, candidate_QD: Tensor, score_Q: Tensor
) -> int | None:
    """Return a query whose score with its own candidate is not a number, None if all are numbers."""
    found = first_nan(comparator, query_QD.unsqueeze(1), candidate_QD.unsqueeze(1), score_Q[:, None, None])
    return None if found is None else found[0]


def _overflows_both_ways(query_BQD: Tensor, candidate_BCD: Tensor, dtype: torch.dtype) -> Tensor:
    """Tell of each pair of rows whether a term is no number, or positive and negative terms both overflow, bool."""
    query_BQD, candidate_BDC = query_BQD.double(), candidate_BCD.double().transpose(1, 2)
    no_number_BQC = torch.isnan(query_BQD.abs() @ candidate_BDC.abs())  # infinity times zero
    longest = torch.finfo(torch.float64).max  # an infinity times zero would spoil sums of other terms
    query_BQD, candidate_BDC = query_BQD.clamp(-longest, longest), candidate_BDC.clamp(-longest, longest)
    high_BQD, low_BQD, high_BDC, low_BDC = (x.relu() for x in (query_BQD, -query_BQD, candidate_BDC, -candidate_BDC))
    positive_BQC = high_BQD @ high_BDC + low_BQD @ low_BDC
    negative_BQC = high_BQD @ low_BDC + low_BQD @ high_BDC
    return no_number_BQC | (torch.minimum(positive_BQC, negative_BQC) > torch.finfo(dtype).max)


def _first(found_BQC: Tensor) -> tuple[int, int, int] | None:
    if not bool(found_BQC.any()):
        return None
    chunk, query, candidate = found_BQC.nonzero()[0].tolist()
    return chunk, query, candidate


def overflow_is_impossible(largest_query: float, largest_candidate: float, num_columns: int) -> bool:
    """Tell whether no inner product of rows with such largest magnitudes overflows; False for NaN and infinity."""
    return largest_query * largest_candidate * num_columns < LARGEST_SAFE_SCORE


def largest(rows: Tensor) -> float:
    """Return the largest magnitude of some rows, NaN if there is a NaN."""
    low, high = torch.aminmax(rows)
    return float(torch.maximum(-low, high))
