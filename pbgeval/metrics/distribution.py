"""Queries -> what rank metrics are computed from: how much weight each rank has, and the numbers of candidates.

A metric sees nothing else, so it cannot depend on the order of the queries. Means over queries may be given from
elsewhere: from exact integer sums, or as means over all orders of tied candidates. What follows only from a rank
together with its own query's candidates is always given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from itertools import pairwise
from math import fsum, inf

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from pbgeval.notation import Floats, Integers
from pbgeval.stats.bins import bin_middles
from pbgeval.stats.float_sums import float_sum
from pbgeval.stats.keyed_sums import KeyedSums, begins, first_of_each
from pbgeval.stats.query_metrics import find_query_metric
from pbgeval.stats.series import harmonic, harmonic_squares, log_power_moments

# Numbers of candidates -> what rank metrics are by chance: their expectations and variances in closed form.
#
# The chance model: ranks are independent, and a query with C candidates (the true entity included) has each of the
# ranks
# 1..C with the same probability. Weights are scale factors, not repeat counts: a query of weight w has the share
# p = w / (sum of weights) in a mean, and adds p^2 times its variance to the variance of the mean.
# Source: Hoyt et al., "A Unified Framework for Rank-based Evaluation Metrics for Link Prediction in Knowledge Graphs"
# (2022).


Level = Callable[["CandidateGroups"], float]  # what a metric, or its variance, is by chance


@frozen(eq=False)
class CandidateGroups:
    """Queries by number of candidates and weight; each pair of these occurs once, in increasing order."""

    candidates_G: Floats  # whole numbers, the true entity included
    weight_G: Floats  # of one query, positive; 1 without weights
    num_queries_G: Integers  # positive
    _levels: dict[Level, float] = field(factory=dict, init=False)

    @classmethod
    def from_queries(cls, num_candidates_Q: NDArray[np.generic], weight_Q: Floats | None = None) -> CandidateGroups:
        """Group queries.

        Args:
            num_candidates_Q: of each query, the true entity included.
            weight_Q: of each query, as `comparable_weights` returns them; default: 1. Those of weight 0 are left out.
        """
        if weight_Q is None:
            candidates_G, num_queries_G = np.unique(num_candidates_Q, return_counts=True)
            return cls(candidates_G.astype(np.float64), np.ones(len(candidates_G)), num_queries_G.astype(np.int64))
        kept = np.flatnonzero(weight_Q)
        order = kept[np.lexsort((weight_Q[kept], num_candidates_Q[kept]))]
        candidates, weight = np.asarray(num_candidates_Q)[order], weight_Q[order]
        first_G = np.flatnonzero(begins(candidates, weight))
        num_queries_G = np.diff(first_G, append=len(order))
        return cls(candidates[first_G].astype(np.float64), weight[first_G], num_queries_G.astype(np.int64))

    @classmethod
    def from_counts(cls, num_candidates: KeyedSums) -> CandidateGroups:
        """Take the groups of queries without weights from a histogram."""
        return cls(num_candidates.keys.astype(np.float64), np.ones(len(num_candidates.keys)), num_candidates.counts)

    @cached_property
    def total_weight(self) -> float:
        """The sum of the weights of all queries."""
        return fsum((self.weight_G * self.num_queries_G).tolist())

    def by_chance(self, level: Level | None) -> float | None:
        """Return a level, which is computed once; None without a closed form or without queries that weigh."""
        if level is None or not self.total_weight:
            return None
        if level not in self._levels:
            self._levels[level] = level(self)
        return self._levels[level]

    def mean(self, value_G: Floats) -> float:
        """Return the weighted mean of a value that each query of a group has; 1 exactly if all values are 1."""
        return fsum((self.weight_G * self.num_queries_G * value_G).tolist()) / self.total_weight

    def variance_of_mean(self, variance_G: Floats) -> float:
        """Return the variance of the weighted mean of independent values with these variances."""
        return fsum((self.share_G**2 * self.num_queries_G * variance_G).tolist())

    def sum(self, value_G: Floats) -> float:
        """Return the sum over queries of a value that each query of a group has."""
        return fsum((self.num_queries_G * value_G).tolist())

    @property
    def share_G(self) -> Floats:
        """The share of one query of each group in the sum of all weights."""
        return self.weight_G / self.total_weight

    @cached_property
    def log_geometric_mean(self) -> float:
        """The logarithm of the expected geometric mean rank: sum L(p), L(a) = ln of the mean of j^a over j = 1..C."""
        return self.sum(self._log_moments[0])

    @cached_property
    def log_geometric_spread(self) -> float:
        """The sum of L(2p) - 2 L(p), from which the variance of the geometric mean rank follows."""
        return self.sum(self._log_moments[1])

    @cached_property
    def _log_moments(self) -> tuple[Floats, Floats]:
        return log_power_moments(self.candidates_G, self.share_G)


def expected_mean_reciprocal_rank(groups: CandidateGroups, cutoff: float = inf) -> float:
    """Return sum p H_1(min(K, C)) / C: ranks beyond K count as 0."""
    return groups.mean(harmonic(np.minimum(groups.candidates_G, cutoff)) / groups.candidates_G)


def variance_of_mean_reciprocal_rank(groups: CandidateGroups, cutoff: float = inf) -> float:
    """Return sum p^2 (C H_2(k) - H_1(k)^2) / C^2, k = min(K, C)."""
    candidates_G, counted_G = groups.candidates_G, np.minimum(groups.candidates_G, cutoff)
    squares = candidates_G * harmonic_squares(counted_G) - harmonic(counted_G) ** 2
    return groups.variance_of_mean(squares / candidates_G**2)


def variance_of_hits_at(groups: CandidateGroups, cutoff: int) -> float:
    """Return sum p^2 q (1 - q), q = min(K / C, 1)."""
    share_hit_G = np.minimum(cutoff / groups.candidates_G, 1.0)
    return groups.variance_of_mean(share_hit_G * (1.0 - share_hit_G))


SUM_ERROR = 2.0**-50  # of a share of a sum of weights: each weight, and each sum by rank, is rounded once


# From the name of a `QueryMetric` to its mean over the queries, which a caller knows better than from the ranks: from
# exact sums, over all orders of ties, or from pairs of a rank and a number of candidates. None: it does not know it.
Means = Callable[[str], float | None]


def _mean_of_pairs(rank_Q: Floats, num_candidates_Q: Integers, weight_Q: Floats | None, name: str) -> float | None:
    """Return the weighted mean of a metric that needs pairs; None for others."""
    metric = find_query_metric(name)
    if metric is None or not metric.needs_pairs:
        return None
    competitors_Q = num_candidates_Q - 1
    columns = metric.of_query((2.0 * rank_Q).astype(np.int64), competitors_Q), metric.counted(competitors_Q)
    weights = 1.0 if weight_Q is None else weight_Q
    numerator, counted = (fsum((of_Q.astype(np.float64) * weights).tolist()) for of_Q in columns)
    return metric.mean(numerator, counted, bits=0)  # fractions as they are


@frozen(eq=False)
class RankDistribution:
    """Ranks with their weights, and numbers of candidates with theirs; queries of weight 0 are only counted."""

    ranks_K: Floats  # distinct, increasing; halves allowed
    weight_K: Floats  # of all queries that have the rank, positive
    groups: CandidateGroups  # the same queries by number of candidates
    num_queries: int  # those of weight 0 too
    is_weighted: bool = False  # whether weights were given, equal or not
    means: Means = lambda _: None  # in place of those of `ranks_K`; by default all follow from the ranks

    @classmethod
    def from_queries(
        cls, rank_Q: Floats, num_candidates_Q: Integers, groups: CandidateGroups, weight_Q: Floats | None = None
    ) -> RankDistribution:
        """Gather queries.

        Args:
            rank_Q: the rank of each query, from 1; whole or half.
            num_candidates_Q: the number of its candidates, the true entity included.
            groups: the same queries by number of candidates.
            weight_Q: its weight, as `comparable_weights` returns them; default: all alike. Only ratios matter.
        """
        means = partial(_mean_of_pairs, rank_Q, num_candidates_Q, weight_Q)
        if weight_Q is None:
            ranks_K, num_queries_K = np.unique(rank_Q, return_counts=True)
            return cls(ranks_K, num_queries_K.astype(np.float64), groups, len(rank_Q), means=means)
        kept = np.flatnonzero(weight_Q)
        order = kept[np.argsort(rank_Q[kept])]
        ranks_K, first_K = first_of_each(rank_Q[order])
        weights = weight_Q[order].tolist()
        return cls(
            ranks_K,
            np.array(
                [fsum(weights[first:end]) for first, end in pairwise([*first_K.tolist(), len(weights)])], np.float64
            ),
            groups,
            len(rank_Q),
            is_weighted=True,
            means=means,
        )

    @classmethod
    def from_counts(cls, ranks: KeyedSums, groups: CandidateGroups, *, doubled: bool = False) -> RankDistribution:
        """Take queries without weights from a histogram as `stats.histograms` keeps it.

        Args:
            ranks: by bin; a wide bin's ranks are taken to be its middle.
            groups: the same queries by number of candidates.
            doubled: whether bins are of doubled ranks, as those of realistic ones.
        """
        ranks_K = bin_middles(ranks.keys)
        return cls(
            ranks_K=ranks_K / 2.0 if doubled else ranks_K,
            weight_K=ranks.counts.astype(np.float64),
            groups=groups,
            num_queries=int(ranks.counts.sum()),
        )

    @cached_property
    def total_weight(self) -> float:
        """The sum of all weights; 0 where there is nothing to take a mean of."""
        return float_sum(self.weight_K)

    def mean(self, value_K: Floats) -> float:
        """Return the weighted mean of a value of each rank."""
        return float_sum(self.weight_K * value_K) / self.total_weight

    @cached_property
    def mean_log_rank(self) -> float:
        """The weighted mean of ln r: four metrics follow from it."""
        return self.mean(np.log(self.ranks_K))

    @cached_property
    def median(self) -> float:
        """The weighted median of the ranks: three metrics follow from it."""
        return weighted_median(self.ranks_K, self.weight_K)

    @cached_property
    def variance(self) -> float:
        """The weighted mean of the squared distance from the mean: two metrics follow from it."""
        return self.mean((self.ranks_K - self.mean(self.ranks_K)) ** 2)

    def hits_at(self, cutoff: int) -> float:
        """Return the weighted share of ranks at most the cut-off; half ranks compare as they are."""
        return float_sum(self.weight_K[self._within(cutoff)]) / self.total_weight

    def mean_reciprocal_rank(self, cutoff: float = inf) -> float:
        """Return the weighted mean of 1 / rank of ranks at most the cut-off, and of 0 for others."""
        within = self._within(cutoff)
        return float_sum(self.weight_K[within] / self.ranks_K[within]) / self.total_weight

    def _within(self, cutoff: float) -> slice:
        return slice(0, int(np.searchsorted(self.ranks_K, cutoff, "right")))


def weighted_median(value_K: Floats, weight_K: Floats) -> float:
    """Return the least value with more than half of the weight at or below it; at exactly half, the mean with the next.

    Equal weights give the usual median. A weight such as 1/3 is rounded, so "exactly" means up to SUM_ERROR.

    Args:
        value_K: distinct, increasing.
        weight_K: of each value, positive.
    """
    running_K = np.cumsum(weight_K)
    if SUM_ERROR * running_K[-1] < 1.0 and bool((weight_K == np.floor(weight_K)).all()):  # then these are exact
        place = int(np.searchsorted(running_K, running_K[-1] / 2.0))
        reached, total = float(running_K[place]), float(running_K[-1])
    else:
        weights = weight_K.tolist()
        total = fsum(weights)
        # Running sums of floats are off by far less than 2^-30, so the value is here or a few places further
        place = int(np.searchsorted(running_K, total / 2.0 * (1.0 - 2.0**-30)))
        reached = fsum(weights[: place + 1])
        while 2.0 * reached - total < -SUM_ERROR * total:
            place += 1
            reached += weights[place]
    is_half = 2.0 * reached - total <= SUM_ERROR * total
    return float((value_K[place] + value_K[place + 1]) / 2.0 if is_half else value_K[place])


def comparable_weights(weight_Q: Floats) -> Floats:
    """Scale weights by a power of two, so that sums and squares stay in range."""
    _, exponent = np.frexp(weight_Q.max(initial=0.0))
    return np.asarray(np.ldexp(weight_Q, -int(exponent)))
