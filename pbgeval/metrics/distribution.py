"""Queries -> what rank metrics are computed from: how much weight each rank has, and the numbers of candidates.

A metric sees nothing else, so it cannot depend on the order of the queries. The three means that add up over queries
(of the rank, its reciprocal, hits) may be given from elsewhere: from exact integer sums, or as means over all orders
of tied candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import exp, expm1, fsum, inf

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray

from pbgeval.stats.histograms import EXACT_BINS, bin_middles
from pbgeval.stats.keyed_sums import KeyedSums
from pbgeval.stats.query_metrics import find_query_metric
from pbgeval.stats.series import harmonic, harmonic_squares, log_mean_power, log_power_spread

# Numbers of candidates -> what rank metrics are by chance: their expectations and variances in closed form.
#
# The chance model: ranks are independent, and a query with C candidates (the true entity included) has each of the
# ranks
# 1..C with the same probability. Weights are scale factors, not repeat counts: a query of weight w has the share
# p = w / (sum of weights) in a mean, and adds p^2 times its variance to the variance of the mean.
# Source: Hoyt et al., "A Unified Framework for Rank-based Evaluation Metrics for Link Prediction in Knowledge Graphs"
# (2022).

Integers = NDArray[np.int64]


@frozen(eq=False)
class CandidateGroups:
    """Queries by number of candidates and weight; each pair of these occurs once, in increasing order."""

    candidates_G: Floats  # whole numbers, the true entity included
    weight_G: Floats  # of one query, positive; 1 without weights
    num_queries_G: Integers  # positive

    @classmethod
    def from_queries(cls, num_candidates_Q: NDArray[np.generic], weight_Q: Floats | None = None) -> CandidateGroups:
        """Group queries.

        Args:
            num_candidates_Q: of each query, the true entity included.
            weight_Q: of each query, positive; default: 1.
        """
        if weight_Q is None:
            candidates_G, num_queries_G = np.unique(num_candidates_Q, return_counts=True)
            return cls(candidates_G.astype(np.float64), np.ones(len(candidates_G)), num_queries_G.astype(np.int64))
        order = np.lexsort((weight_Q, num_candidates_Q))
        candidates, weight = np.asarray(num_candidates_Q)[order], weight_Q[order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (candidates[1:] != candidates[:-1]) | (weight[1:] != weight[:-1])
        first_G = np.flatnonzero(is_first)
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
        """The logarithm of the expected geometric mean rank: sum L(p)."""
        return self.sum(log_mean_power(self.candidates_G, self.share_G))


def expected_mean_rank(groups: CandidateGroups) -> float:
    """Return sum p (C + 1) / 2."""
    return groups.mean((groups.candidates_G + 1.0) / 2.0)


def variance_of_mean_rank(groups: CandidateGroups) -> float:
    """Return sum p^2 (C^2 - 1) / 12."""
    return groups.variance_of_mean((groups.candidates_G - 1.0) * (groups.candidates_G + 1.0) / 12.0)


def expected_mean_reciprocal_rank(groups: CandidateGroups, cutoff: float = inf) -> float:
    """Return sum p H_1(min(K, C)) / C: ranks beyond K count as 0."""
    return groups.mean(harmonic(np.minimum(groups.candidates_G, cutoff)) / groups.candidates_G)


def variance_of_mean_reciprocal_rank(groups: CandidateGroups, cutoff: float = inf) -> float:
    """Return sum p^2 (C H_2(k) - H_1(k)^2) / C^2, k = min(K, C)."""
    candidates_G, counted_G = groups.candidates_G, np.minimum(groups.candidates_G, cutoff)
    squares = candidates_G * harmonic_squares(counted_G) - harmonic(counted_G) ** 2
    return groups.variance_of_mean(squares / candidates_G**2)


def expected_hits_at(groups: CandidateGroups, cutoff: int) -> float:
    """Return sum p q, q = min(K / C, 1)."""
    return groups.mean(np.minimum(cutoff / groups.candidates_G, 1.0))


def variance_of_hits_at(groups: CandidateGroups, cutoff: int) -> float:
    """Return sum p^2 q (1 - q), q = min(K / C, 1)."""
    share_hit_G = np.minimum(cutoff / groups.candidates_G, 1.0)
    return groups.variance_of_mean(share_hit_G * (1.0 - share_hit_G))


def expected_geometric_mean_rank(groups: CandidateGroups) -> float:
    """Return exp(sum L(p)), L(a) = ln of the mean of j^a over j = 1..C."""
    return exp(groups.log_geometric_mean)


def variance_of_geometric_mean_rank(groups: CandidateGroups) -> float:
    """Return exp(2 sum L(p)) (exp(sum L(2p) - 2 sum L(p)) - 1)."""
    log_spread = groups.sum(log_power_spread(groups.candidates_G, groups.share_G))
    return exp(2.0 * groups.log_geometric_mean) * expm1(log_spread)


Floats = NDArray[np.float64]

BIN_ERROR = 2.0**-11  # of the middle of a histogram's bin, relative to any rank in it
_SUM_ROWS = 64  # added one after the other; ten times as fast as an exact sum of every value
SUM_ERROR = 2.0**-50  # of a share of a sum of weights: each weight, and each sum by rank, is rounded once


# From the name of a `QueryMetric` to its mean over the queries, which a caller knows better than from the ranks: from
# exact sums, or over all orders of ties. None: it does not know it.
Means = Callable[[str], float | None]


@frozen(eq=False)
class RankDistribution:
    """Ranks with their weights, and numbers of candidates with theirs; queries of weight 0 are only counted."""

    ranks_R: Floats  # distinct, increasing; halves allowed
    weight_R: Floats  # of all queries that have the rank, positive
    groups: CandidateGroups  # the same queries by number of candidates
    num_queries: int  # those of weight 0 too
    is_weighted: bool = False  # whether weights were given, equal or not
    relative_error: float = 0.0  # bound of the error of each rank: ranks of wide bins are the bins' middles
    means: Means | None = None  # in place of those of `ranks_R`
    _known: dict[str, float | None] = field(factory=dict, init=False, repr=False)

    @classmethod
    def from_queries(
        cls,
        rank_Q: NDArray[np.generic],
        num_candidates_Q: NDArray[np.generic],
        weight_Q: NDArray[np.generic] | None = None,
        *,
        groups: CandidateGroups | None = None,
        means: Means | None = None,
    ) -> RankDistribution:
        """Gather queries.

        Args:
            rank_Q: the rank of each query, from 1; whole or half.
            num_candidates_Q: its number of candidates, the true entity included.
            weight_Q: its weight, finite and not negative; default: all alike. Only ratios matter.
            groups: the same queries by number of candidates, if they are grouped already.
            means: of the ranks, if they are known better than from the ranks. Else metrics that depend on the number
                of candidates of each query, too, are computed here.
        """
        rank = np.asarray(rank_Q, np.float64)

        def mean_of_queries(name: str) -> float | None:
            metric = find_query_metric(name)
            if metric is None or metric.of_rank_alone:
                return None
            columns = (2 * rank, np.asarray(num_candidates_Q) - 1)
            value_Q = metric.of_query(*(torch.from_numpy(of.astype(np.int64)) for of in columns)).double().numpy()
            shares_Q = np.ones(len(rank)) if weight_Q is None else comparable_weights(np.asarray(weight_Q, np.float64))
            return weighted_mean(value_Q / (metric.units or 1), shares_Q)

        means = means or mean_of_queries
        if weight_Q is None:
            ranks_R, num_queries_R = np.unique(rank, return_counts=True)
            groups = CandidateGroups.from_queries(num_candidates_Q) if groups is None else groups
            return cls(ranks_R, num_queries_R.astype(np.float64), groups, len(rank), means=means)
        weight = comparable_weights(np.asarray(weight_Q, np.float64))
        kept = np.flatnonzero(weight)
        ranks_R, weight_R = _weight_of_each(rank[kept], weight[kept])
        if groups is None:
            groups = CandidateGroups.from_queries(np.asarray(num_candidates_Q)[kept], weight[kept])
        return cls(ranks_R, weight_R, groups, len(rank), is_weighted=True, means=means)

    @classmethod
    def from_counts(
        cls, ranks: KeyedSums, num_candidates: KeyedSums, *, doubled: bool = False, means: Means | None = None
    ) -> RankDistribution:
        """Take queries without weights from histograms as `stats.histograms` keeps them.

        Args:
            ranks: by bin; a wide bin's ranks are taken to be its middle.
            num_candidates: of the same queries, exact.
            doubled: whether bins are of doubled ranks, as those of realistic ones.
            means: of the ranks, if there are exact sums: the bins would do for them only up to `relative_error`.
        """
        ranks_R = bin_middles(ranks.keys)
        is_exact = not len(ranks.keys) or int(ranks.keys[-1]) < EXACT_BINS
        return cls(
            ranks_R=ranks_R / 2.0 if doubled else ranks_R,
            weight_R=ranks.counts.astype(np.float64),
            groups=CandidateGroups.from_counts(num_candidates),
            num_queries=int(ranks.counts.sum()),
            relative_error=0.0 if is_exact else BIN_ERROR,
            means=means,
        )

    @property
    def is_exact(self) -> bool:
        """Whether every rank is the one that was found, not the middle of a bin."""
        return self.relative_error == 0.0

    @cached_property
    def total_weight(self) -> float:
        """The sum of all weights; 0 where there is nothing to take a mean of."""
        return _sum(self.weight_R)

    def mean(self, value_R: Floats) -> float:
        """Return the weighted mean of a value of each rank."""
        return _sum(self.weight_R * value_R) / self.total_weight

    @cached_property
    def mean_log_rank(self) -> float:
        """The weighted mean of ln r: four metrics follow from it."""
        return self.mean(np.log(self.ranks_R))

    @cached_property
    def median(self) -> float:
        """The weighted median of the ranks: three metrics follow from it."""
        return weighted_median(self.ranks_R, self.weight_R)

    @cached_property
    def variance(self) -> float:
        """The weighted mean of the squared distance from the mean: two metrics follow from it."""
        return self.mean((self.ranks_R - self.mean(self.ranks_R)) ** 2)

    def mean_rank(self) -> float:
        """Return the weighted mean of the ranks."""
        given = self.query_mean("mean_rank")
        return self.mean(self.ranks_R) if given is None else given

    def mean_reciprocal_rank(self) -> float:
        """Return the weighted mean of 1 / rank."""
        given = self.query_mean("mean_reciprocal_rank")
        return _sum(self.weight_R / self.ranks_R) / self.total_weight if given is None else given

    def hits_at(self, cutoff: int) -> float:
        """Return the weighted share of ranks at most the cut-off; half ranks compare as they are."""
        given = self.query_mean(f"hits_at_{cutoff}")
        return _sum(self.weight_R[: self._num_within(cutoff)]) / self.total_weight if given is None else given

    def query_mean(self, name: str) -> float | None:
        """Return the mean of a `QueryMetric` that is known otherwise than from the ranks."""
        if name not in self._known:
            self._known[name] = None if self.means is None else self.means(name)
        return self._known[name]

    def mean_reciprocal_rank_at(self, cutoff: int) -> float:
        """Return the weighted mean of 1 / rank of ranks at most the cut-off, and of 0 for others."""
        within = slice(0, self._num_within(cutoff))
        return _sum(self.weight_R[within] / self.ranks_R[within]) / self.total_weight

    def _num_within(self, cutoff: int) -> int:
        return int(np.searchsorted(self.ranks_R, cutoff, "right"))


def weighted_mean(value_Q: Floats, weight_Q: Floats) -> float:
    """Return the weighted mean, of which each sum is rounded once."""
    return fsum((weight_Q * value_Q).tolist()) / fsum(weight_Q.tolist())


def _sum(values: Floats) -> float:
    """Return the sum to nearly the last bit, in an order that depends on no processor: columns first, then exactly."""
    num_columns = -(-len(values) // _SUM_ROWS)
    padded = np.zeros(_SUM_ROWS * num_columns)
    padded[: len(values)] = values
    return fsum(padded.reshape(_SUM_ROWS, num_columns).sum(axis=0).tolist())


def weighted_median(value_R: Floats, weight_R: Floats) -> float:
    """Return the least value with more than half of the weight at or below it; at exactly half, the mean with the next.

    Equal weights give the usual median. A weight such as 1/3 is rounded, so "exactly" means up to SUM_ERROR.

    Args:
        value_R: distinct, increasing.
        weight_R: of each value, positive.
    """
    weights, running_R = weight_R.tolist(), np.cumsum(weight_R)
    total = fsum(weights)
    # Running sums of floats are off by far less than 2^-30, so the value is here or a few places further
    place = int(np.searchsorted(running_R, total / 2.0 * (1.0 - 2.0**-30)))
    reached = fsum(weights[: place + 1])
    while 2.0 * reached - total < -SUM_ERROR * total:
        place += 1
        reached += weights[place]
    is_half = 2.0 * reached - total <= SUM_ERROR * total
    return float((value_R[place] + value_R[place + 1]) / 2.0 if is_half else value_R[place])


def comparable_weights(weight_Q: Floats) -> Floats:
    """Return the weights times a power of two, so that their sums and squares stay in range and no digit is lost."""
    if not weight_Q.size:
        return weight_Q
    _, exponent = np.frexp(weight_Q.max())
    return np.asarray(np.ldexp(weight_Q, -int(exponent)))


def _weight_of_each(rank: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return the distinct ranks in order and the sum of the weights of each, rounded once whatever the order."""
    order = np.argsort(rank)
    ranks_R, first_R, num_queries_R = np.unique(rank[order], return_index=True, return_counts=True)
    weights = weight[order].tolist()
    ends = (first_R + num_queries_R).tolist()
    sums = [fsum(weights[first:end]) for first, end in zip(first_R.tolist(), ends, strict=True)]
    return ranks_R, np.array(sums, np.float64)
