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
        doubled_wins = sum(
            int(_Comparison.of(pool.true, other.competing).of_first().sum()) for pool in pools for other in pools
        )
        return PooledAuc(doubled_wins / (2 * num_true * num_competing), None)
    union = SortedPool.union(pools)
    wins = _Comparison.of(union.true, union.competing)
    wins_Q = wins.of_first()
    variance = 0.0
    if not all_true:
        variance += _variance_of_mean(wins_Q / (2 * num_competing))
    if not all_competing:
        losses_C = 2 * num_true - wins.of_second()
        variance += _variance_of_mean(losses_C / (2 * num_true))
    return PooledAuc(int(wins_Q.sum()) / (2 * num_true * num_competing), math.sqrt(variance))


@frozen(eq=False)
class _Comparison:
    """Two sorted arrays of scores: the few are looked up among the many, once for both."""

    lower_F: np.ndarray  # for each of the few how many of the many are lower
    not_higher_F: np.ndarray  # how many are not higher
    num_many: int
    first_are_few: bool

    @classmethod
    def of(cls, first: np.ndarray, second: np.ndarray) -> _Comparison:
        first_are_few = len(first) <= len(second)
        few, many = (first, second) if first_are_few else (second, first)
        lower = np.searchsorted(many, few, "left")
        not_higher = lower.copy()
        ties = np.flatnonzero(many[np.minimum(lower, len(many) - 1)] == few)  # few: the second search is saved
        not_higher[ties] = np.searchsorted(many, few[ties], "right")
        return cls(lower, not_higher, len(many), first_are_few)

    def of_first(self) -> np.ndarray:
        """Return for each of the first how many of the second it beats, twice, and ties with, once."""
        return self._of_few() if self.first_are_few else self._of_many()

    def of_second(self) -> np.ndarray:
        """Return the same for each of the second."""
        return self._of_many() if self.first_are_few else self._of_few()

    def _of_few(self) -> np.ndarray:
        doubled: np.ndarray = self.lower_F + self.not_higher_F
        return doubled

    def _of_many(self) -> np.ndarray:
        # Each of the few is beaten (or reached) by all of the many from its place on.
        places = np.concatenate([self.lower_F, self.not_higher_F])
        return np.cumsum(np.bincount(places, minlength=self.num_many + 1)[: self.num_many])


def _variance_of_mean(shares: np.ndarray) -> float:
    """Return the variance of the mean of independent draws; infinite from a single one."""
    return float(np.var(shares, ddof=1)) / len(shares) if len(shares) > 1 else math.inf
