"""Pools of scores -> the pooled AUC and, where it is estimated, its standard error.

AUC = P(true score > competitor's score) + P(equal) / 2 over all pairs of the pool (docs/metrics.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from attrs import frozen

from pbgeval.stats.pool import SortedPool

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


def pooled_auc(pools: Sequence[SortedPool], *, all_true: bool, all_competing: bool) -> PooledAuc | None:
    """Compare every true score with every competitor's score of the union of some pools.

    Args:
        pools: scores of groups of queries.
        all_true: whether the pools have every true score, not a sample.
        all_competing: likewise for competitors.

    Returns:
        None if there is nothing to compare.
    """
    num_true = sum(len(pool.true) for pool in pools)
    num_competing = sum(len(pool.competing) for pool in pools)
    if not num_true or not num_competing:
        return None
    if all_true and all_competing:
        if num_true * len(pools) > num_competing:
            pools = [SortedPool.union(pools)]
        doubled_wins = sum(int(_doubled_wins(pool.true, other.competing).sum()) for pool in pools for other in pools)
        return PooledAuc(doubled_wins / (2 * num_true * num_competing), None)
    union = SortedPool.union(pools)
    wins_Q = _doubled_wins(union.true, union.competing)
    variance = 0.0
    if not all_true:
        variance += _variance_of_mean(wins_Q / (2 * num_competing))
    if not all_competing:
        losses_C = 2 * num_true - _doubled_wins(union.competing, union.true)
        variance += _variance_of_mean(losses_C / (2 * num_true))
    return PooledAuc(int(wins_Q.sum()) / (2 * num_true * num_competing), math.sqrt(variance))


def _doubled_wins(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return for each score how many of the others it beats, twice, and ties with, once; both are sorted."""
    if len(scores) <= len(others):
        doubled_wins: np.ndarray = np.add(*_places(others, scores))
        return doubled_wins
    # The few are looked up among the many, and each of them is beaten (or reached) by all from its place on.
    places = np.concatenate(_places(scores, others))
    return np.cumsum(np.bincount(places, minlength=len(scores) + 1)[: len(scores)])


def _places(among: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each score how many of the others are lower, and how many are not higher; all are sorted."""
    lower = np.searchsorted(among, scores, "left")
    not_higher = lower.copy()
    ties = np.flatnonzero(among[np.minimum(lower, len(among) - 1)] == scores)  # few: the second search is saved
    not_higher[ties] = np.searchsorted(among, scores[ties], "right")
    return lower, not_higher


def _variance_of_mean(shares: np.ndarray) -> float:
    """Return the variance of the mean of independent draws; infinite from a single one."""
    return float(np.var(shares, ddof=1)) / len(shares) if len(shares) > 1 else math.inf
