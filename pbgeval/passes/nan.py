"""Prepared rows and scores -> an error where a score is not a number.

Finite rows can overflow: inf - inf is NaN, and NaN compares as false with everything, which would rank first.
Looking at every score is spared where it cannot be: when a bound on the rows excludes overflow (no partial sum
exceeds D' * max|q| * max|c|), or when all scores have a finite sum; whichever means reading less.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST_SAFE_SCORE = 1e37  # a tenth of the largest float32, so that rounding cannot reach it


def first_nan(query_BQD: Tensor, candidate_BCD: Tensor, scores_BQC: Tensor) -> tuple[int, int, int] | None:
    """Return (chunk, query, candidate) of a score that is not a number, None if all are numbers."""
    if not scores_BQC.numel():
        return None
    if scores_BQC.numel() < query_BQD.numel() + candidate_BCD.numel():
        if math.isfinite(float(scores_BQC.sum())):
            return None
    elif overflow_is_impossible(largest(query_BQD), largest(candidate_BCD), query_BQD.shape[-1]):
        return None
    nan_BQC = torch.isnan(scores_BQC)
    if not bool(nan_BQC.any()):
        return None
    chunk, query, candidate = nan_BQC.nonzero()[0].tolist()
    return chunk, query, candidate


def overflow_is_impossible(largest_query: float, largest_candidate: float, num_columns: int) -> bool:
    """Tell whether no inner product of rows with such largest magnitudes overflows; False for NaN and infinity."""
    return largest_query * largest_candidate * num_columns < LARGEST_SAFE_SCORE


def largest(rows: Tensor) -> float:
    """Return the largest magnitude of some rows, NaN if there is a NaN."""
    low, high = torch.aminmax(rows)
    return float(torch.maximum(-low, high))
