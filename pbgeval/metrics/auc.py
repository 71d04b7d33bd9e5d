"""Pools of scores -> the pooled AUC and, where it is estimated, its standard error.

AUC = P(true score > competitor's score) + P(equal) / 2 over all pairs of the pool (docs/metrics.md).
"""

from __future__ import annotations

import math

import numpy as np
from attrs import frozen

from pbgeval.stats.pool import ScorePool

NORMAL_975 = 1.959963984540054  # the 97.5 % quantile of the normal distribution


@frozen
class PooledAuc:
    """A value with its error; `standard_error` is None where every score was compared."""

    value: float
    standard_error: float | None

    def interval(self) -> dict[str, float] | None:
        """Return the 95 % interval as the report writes it."""
        if self.standard_error is None:
            return None
        reach = NORMAL_975 * self.standard_error
        return {
            "standard_error": self.standard_error,
            "low": max(0.0, self.value - reach),
            "high": min(1.0, self.value + reach),
        }


def pooled_auc(pool: ScorePool, *, all_true: bool, all_competing: bool) -> PooledAuc | None:
    """Compare all pairs of a pool.

    Args:
        pool: scores of a side, or of both.
        all_true: whether the pool has every true score, not a sample.
        all_competing: likewise for competitors.

    Returns:
        None if there is nothing to compare.
    """
    true_Q, competing_C = pool.sorted_true(), pool.sorted_competing()
    num_true, num_competing = len(true_Q), len(competing_C)
    if not num_true or not num_competing:
        return None
    below_Q = np.searchsorted(competing_C, true_Q, "left")
    upto_Q = np.searchsorted(competing_C, true_Q, "right")
    doubled_wins = int(below_Q.sum()) + int(upto_Q.sum())
    value = doubled_wins / (2 * num_true * num_competing)
    if all_true and all_competing:
        return PooledAuc(value, None)
    variance = 0.0
    if not all_true:
        variance += _variance_of_mean((below_Q + upto_Q) / (2 * num_competing))
    if not all_competing:
        above_C = num_true - np.searchsorted(true_Q, competing_C, "right")
        not_below_C = num_true - np.searchsorted(true_Q, competing_C, "left")
        variance += _variance_of_mean((above_C + not_below_C) / (2 * num_true))
    return PooledAuc(value, math.sqrt(variance))


def _variance_of_mean(shares: np.ndarray) -> float:
    """Return the variance of the mean of independent draws; infinite from a single one."""
    return float(np.var(shares, ddof=1)) / len(shares) if len(shares) > 1 else math.inf
