"""Numbers of candidates -> what rank metrics are by chance: their expectations and variances in closed form.

The chance model: ranks are independent, and a query with C candidates (the true entity included) has each of the ranks
1..C with the same probability. Weights are scale factors, not repeat counts: a query of weight w has the share
p = w / (sum of weights) in a mean, and adds p^2 times its variance to the variance of the mean.
Source: Hoyt et al., "A Unified Framework for Rank-based Evaluation Metrics for Link Prediction in Knowledge Graphs"
(2022).
"""

from __future__ import annotations

from functools import cached_property
from math import exp, expm1, fsum

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from pbgeval.stats.series import harmonic, harmonic_squares, log_mean_power, log_power_spread
from pbgeval.stats.sparse import SparseCounts

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@frozen(eq=False)
class CandidateGroups:
    """Queries by number of candidates and weight; each pair of these occurs once, in increasing order."""

    candidates_G: Floats  # whole numbers, the true entity included
    weight_G: Floats  # of one query, positive; 1 without weights
    num_queries_G: Integers  # positive

    @classmethod
    def of_queries(cls, num_candidates_Q: NDArray[np.generic], weight_Q: Floats | None = None) -> CandidateGroups:
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
    def of_counts(cls, num_candidates: SparseCounts) -> CandidateGroups:
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

    @cached_property
    def log_geometric_spread(self) -> float:
        """The logarithm of 1 + variance / expectation^2 of the geometric mean rank: sum L(2p) - 2 sum L(p)."""
        return self.sum(log_power_spread(self.candidates_G, self.share_G))


def expected_mean_rank(groups: CandidateGroups) -> float:
    """Return sum p (C + 1) / 2."""
    return groups.mean((groups.candidates_G + 1.0) / 2.0)


def variance_of_mean_rank(groups: CandidateGroups) -> float:
    """Return sum p^2 (C^2 - 1) / 12."""
    return groups.variance_of_mean((groups.candidates_G - 1.0) * (groups.candidates_G + 1.0) / 12.0)


def expected_mean_reciprocal_rank(groups: CandidateGroups) -> float:
    """Return sum p H_1(C) / C."""
    return groups.mean(harmonic(groups.candidates_G) / groups.candidates_G)


def variance_of_mean_reciprocal_rank(groups: CandidateGroups) -> float:
    """Return sum p^2 (C H_2(C) - H_1(C)^2) / C^2."""
    candidates_G = groups.candidates_G
    squares = candidates_G * harmonic_squares(candidates_G) - harmonic(candidates_G) ** 2
    return groups.variance_of_mean(squares / candidates_G**2)


def expected_mean_reciprocal_rank_at(groups: CandidateGroups, cutoff: int) -> float:
    """Return sum p H_1(min(K, C)) / C."""
    return groups.mean(harmonic(np.minimum(groups.candidates_G, cutoff)) / groups.candidates_G)


def variance_of_mean_reciprocal_rank_at(groups: CandidateGroups, cutoff: int) -> float:
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
    return exp(2.0 * groups.log_geometric_mean) * expm1(groups.log_geometric_spread)
