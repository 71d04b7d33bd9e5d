"""Pools of scores -> the pooled AUC and, where it is estimated, its standard error.

AUC = P(true score > competitor's score) + P(equal) / 2 over all pairs of the pool (docs/metrics.md).

Of a sample of edges, everything that an edge (or chunk) brings to the pool depends on it: the true score of both its
queries and all their competitors' scores. So the error is that of sums over clusters: an edge's true scores count by
how many competitors they beat, its competitors' scores by how many true scores beat them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from attrs import frozen

from pbgeval.metrics.intervals import SampleDesign, student_quantile, unseen_ends, variance_of_mean, wilson_ends
from pbgeval.stats.pool import SortedPool

_ENDLESS = 10**9  # degrees of freedom: Student's distribution is the normal one


@frozen
class PooledAuc:
    """A value with its error; `standard_error` is None where every score of all edges was compared."""

    value: float
    standard_error: float | None
    degrees_of_freedom: int = _ENDLESS
    num_draws: float = math.inf  # what the value rests on, where all draws agree

    def interval(self, level: float = 0.95) -> dict[str, float] | None:
        """Return the interval at a level as the report writes it; None where there is none."""
        if self.standard_error is None or not math.isfinite(self.standard_error):
            return None
        critical = student_quantile(level, self.degrees_of_freedom)
        if self.standard_error > 0.0:
            low, high = wilson_ends(self.value, self.standard_error, critical)
            return {"standard_error": self.standard_error, "low": low, "high": high}
        low, high = unseen_ends(self.value, self.num_draws, critical)
        # What an interval as wide would have: 0 is for what is exact.
        return {"standard_error": max(high - self.value, self.value - low) / critical, "low": low, "high": high}


def pooled_auc(
    pools: Sequence[SortedPool], *, all_true: bool, all_competing: bool, design: SampleDesign | None = None
) -> PooledAuc | None:
    """Compare every true score with every competitor's score of the union of some pools.

    Args:
        pools: scores of groups of queries.
        all_true: whether the pools have every true score of the edges that were evaluated, not a sample.
        all_competing: likewise for competitors.
        design: how the edges were drawn, whose clusters the pools hold; None: all of them.

    Returns:
        None if there is nothing to compare.
    """
    num_true = sum(len(pool.true) for pool in pools)
    num_competing = sum(len(pool.competing) for pool in pools)
    if not num_true or not num_competing:
        return None
    if design is None and all_true and all_competing:
        if num_true * len(pools) > num_competing:
            pools = [SortedPool.union(pools)]
        doubled_wins = sum(
            int(_Comparison.of(pool.true, other.competing).of_first().sum()) for pool in pools for other in pools
        )
        return PooledAuc(doubled_wins / (2 * num_true * num_competing), None)
    union = SortedPool.union(pools)
    wins = _Comparison.of(union.true, union.competing)
    beaten_Q = wins.of_first() / (2 * num_competing)
    lost_C = (2 * num_true - wins.of_second()) / (2 * num_true)
    value = int(wins.of_first().sum()) / (2 * num_true * num_competing)
    of_draws = 0.0 if all_true else _variance_of_mean(beaten_Q)
    of_draws += 0.0 if all_competing else _variance_of_mean(lost_C)
    if design is None:
        sizes = [size for size, whole in ((num_true, all_true), (num_competing, all_competing)) if not whole]
        return PooledAuc(value, math.sqrt(of_draws), num_draws=min(sizes))
    if design.degrees_of_freedom < 1:
        return PooledAuc(value, math.inf)
    num_clusters, population = len(design.stratum_U), int(design.population_H.sum())
    assert union.true_cluster is not None, "scores of a sample have clusters"
    assert union.competing_cluster is not None, "scores of a sample have clusters"
    # Each cluster's part of what the value is off by; a part is a mean's, so that they add up to 0.
    share_U = np.bincount(union.true_cluster, beaten_Q - value, num_clusters) / num_true
    share_U += np.bincount(union.competing_cluster, lost_C - value, num_clusters) / num_competing
    variance, freedom = variance_of_mean(num_clusters * share_U, design)
    # The spread of clusters holds that of the scores drawn from each, but for what the finite population takes off.
    variance += of_draws * num_clusters / population
    return PooledAuc(value, math.sqrt(variance), freedom, num_clusters / (1.0 - num_clusters / population))


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
