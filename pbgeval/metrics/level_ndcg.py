"""Levels of tied candidates with their gains, and how many candidates have which gain -> NDCG of each query.

Every operation is one of IEEE, in an order that does not depend on how many queries there are, so a query has the same
bits wherever it is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pbgeval.metrics.ndcg import Discount

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def ndcg_of_levels(
    count_Qk: Integers,
    gain_Qk: Integers,
    ideal_QH: Integers,
    gain_H: Integers,
    cutoffs: Sequence[int],
    discount: Discount,
) -> Floats:
    """Return NDCG at each cut-off, the mean over all orders of tied candidates, float64 (Q, cutoffs).

    In [0, 1]; NaN where there is nothing to gain. Source: `metrics.ndcg.dcg`.

    Args:
        count_Qk: candidates of each level, best first, 0 beyond the last.
        gain_Qk: sums of their gains, in the unit of `gain_H`.
        ideal_QH: candidates of each gain.
        gain_H: descending, none negative.
        cutoffs: each from 1; levels hold at least as many candidates as the greatest, or all there are.
        discount: of positions.
    """
    weights = _weights(max(cutoffs, default=1), discount)
    mean_Qk = gain_Qk / np.maximum(count_Qk, 1)
    found_QK = _discounted(count_Qk, mean_Qk, weights, cutoffs)
    ideal_QK = _discounted(ideal_QH, np.broadcast_to(gain_H.astype(np.float64), ideal_QH.shape), weights, cutoffs)
    shares_QK = np.minimum(found_QK / np.where(ideal_QK > 0, ideal_QK, 1.0), 1.0)  # rounding alone could pass 1
    return np.where(ideal_QK > 0, shares_QK, np.nan)


def _weights(most: int, discount: Discount) -> Floats:
    """Return the sums of 1 / discount over positions 1..p for p = 0..most."""
    positions = range(1, most + 1)
    terms = [1.0 / math.log2(p + 1 if discount is Discount.STANDARD else max(p, 2)) for p in positions]
    return np.array([math.fsum(terms[:number]) for number in range(most + 1)])


def _discounted(count_Qn: Integers, mean_Qn: Floats, weights: Floats, cutoffs: Sequence[int]) -> Floats:
    """Return the sums of mean gains over the positions that candidates fill, one group after the other."""
    total_QK = np.zeros((len(count_Qn), len(cutoffs)))
    cutoff_K = np.array(cutoffs, np.int64)
    before_Q = np.zeros(len(count_Qn), np.int64)
    for column in range(count_Qn.shape[1]):
        after_Q = before_Q + count_Qn[:, column]
        filled_QK = weights[np.minimum(after_Q[:, None], cutoff_K)] - weights[np.minimum(before_Q[:, None], cutoff_K)]
        total_QK += mean_Qn[:, column, None] * filled_QK
        before_Q = after_Q
    return total_QK
