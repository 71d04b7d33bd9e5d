"""The slow truth of estimates: ranks among uniform draws -> those among all candidates, and what is linear in them.

Of N = C - 1 competitors m are drawn, with or without replacement, and the true candidate takes rank s among them. Then

    r = 1 + (s - 1) N / m

has the rank among all C candidates for its expectation, whatever the scores, and so have mean rank, adjusted mean rank
(index) and AUC, which are linear in ranks. Source: Krichene and Rendle, "On Sampled Metrics for Item Recommendation"
(KDD 2020).
"""

from __future__ import annotations

import math

import numpy as np
from attrs import frozen

from pbgeval.metrics.estimates import Estimate
from pbgeval.stats.ranks import RankType


@frozen(eq=False)
class UniformSample:
    """Ranks of queries among candidates that were drawn uniformly."""

    optimistic_Q: np.ndarray  # int64: 1 + drawn ones that score higher
    pessimistic_Q: np.ndarray  # int64: 1 + drawn ones that score as high or higher
    num_drawn_Q: np.ndarray  # int64: m, the true one not among them
    num_candidates_Q: np.ndarray  # int64: C, the true one among them, exclusions not
    with_replacement: bool
    list_Q: np.ndarray | None = (
        None  # int64: queries of one number were ranked among the same draws; None: each has its own
    )

    @property
    def num_competitors_Q(self) -> np.ndarray:
        """N, the candidates from which was drawn."""
        return self.num_candidates_Q - 1

    @property
    def is_exact_Q(self) -> np.ndarray:
        """Whether every competitor was drawn once: the rank is that among all candidates."""
        all_drawn_Q = (self.num_drawn_Q == self.num_competitors_Q) & (not self.with_replacement)
        return all_drawn_Q | (self.num_candidates_Q == 1)


def estimated_ranks(sample: UniformSample, rank_type: RankType = RankType.REALISTIC) -> np.ndarray:
    """Return r = 1 + (s - 1) N / m for each query, float64 (Q,): unbiased for its rank among all candidates.

    [1, C]; not a whole number, and a rank of 1 may well stand for one of N / m: do not take 1/r or hits of it.
    """
    return 1.0 + sample.num_competitors_Q * _shares(sample, rank_type)[0]


def estimate_mean_rank(sample: UniformSample, rank_type: RankType = RankType.REALISTIC) -> Estimate:
    """Estimate the mean rank, without bias; [1, inf), lower is better. None without queries.

    The standard error of all estimates of this module is that of the draws: the queries are taken as given. It is
    estimated without bias (squared) from each query's own draws, so None where a query has a single one. Where queries
    share lists it is the spread of the lists' sums, which queries that differ enlarge; None with a single list. It is
    0 where every competitor was drawn.
    """
    num_queries = len(sample.optimistic_Q)
    if not num_queries:
        return Estimate(None, None)
    return _linear(sample, rank_type, 1.0, sample.num_competitors_Q / num_queries)


def estimate_adjusted_mean_rank(sample: UniformSample, rank_type: RankType = RankType.REALISTIC) -> Estimate:
    """Estimate 2 sum(rank) / sum(C + 1), without bias; (0, 2), lower is better, chance 1. None without queries.

    Standard error: as `estimate_mean_rank`. Source: Berrendorf et al. (2020).
    """
    num_queries, total = len(sample.optimistic_Q), int((sample.num_candidates_Q + 1).sum())
    if not num_queries:
        return Estimate(None, None)
    return _linear(sample, rank_type, 2 * num_queries / total, 2 * sample.num_competitors_Q / total)


def estimate_adjusted_mean_rank_index(sample: UniformSample, rank_type: RankType = RankType.REALISTIC) -> Estimate:
    """Estimate 1 - 2 sum(rank - 1) / sum(C - 1), without bias; [-1, 1], higher is better, chance 0.

    None if no query has a competitor. Standard error: as `estimate_mean_rank`. Source: Berrendorf et al. (2020).
    """
    total = int(sample.num_competitors_Q.sum())
    if not total:
        return Estimate(None, None)
    return _linear(sample, rank_type, 1.0, -2 * sample.num_competitors_Q / total)


def estimate_query_auc(sample: UniformSample) -> Estimate:
    """Estimate the mean share of its competitors that a true candidate beats, ties one half, without bias.

    [0, 1], higher is better, chance 0.5. Queries without competitors are left out; None if there are no others.
    Standard error: as `estimate_mean_rank`. This is the AUC per query, not that of all scores pooled.
    """
    has_competitors_Q = sample.num_competitors_Q > 0
    if not has_competitors_Q.any():
        return Estimate(None, None)
    return _linear(sample, RankType.REALISTIC, 1.0, has_competitors_Q / -int(has_competitors_Q.sum()))


def standard_error_of_sum(values_Q: np.ndarray, sample: UniformSample) -> float | None:
    """Return the standard error of a sum over queries from the spread of its terms, by list where lists are shared.

    Expected squared, it is at least the variance that the draws give the sum, and more by how much the terms'
    expectations differ. Exact queries have no error. None from a single independent term.

    Args:
        values_Q: the terms, float64.
        sample: which of them are exact, and which share draws.
    """
    drawn_Q = ~sample.is_exact_Q
    if not drawn_Q.any():
        return 0.0
    terms = values_Q[drawn_Q]
    if sample.list_Q is not None:
        _, list_of_term = np.unique(sample.list_Q[drawn_Q], return_inverse=True)
        terms = np.bincount(list_of_term, terms)
    return math.sqrt(len(terms) * float(np.var(terms, ddof=1))) if len(terms) > 1 else None


def _linear(sample: UniformSample, rank_type: RankType, start: float, slope_Q: np.ndarray) -> Estimate:
    """Estimate start + sum of slope x (share of competitors that score higher)."""
    share_Q, variance_Q = _shares(sample, rank_type)
    total, slope = math.fsum((slope_Q * share_Q).tolist()), math.fsum(slope_Q.tolist())
    value = start + total
    if sample.list_Q is None:
        variance = math.fsum((slope_Q**2 * variance_Q).tolist())
        return Estimate(value, None if math.isnan(variance) else math.sqrt(variance))
    centre = total / slope if slope else 0.0  # without competitors all shares are 0
    return Estimate(value, standard_error_of_sum(slope_Q * (share_Q - centre), sample))


def _shares(sample: UniformSample, rank_type: RankType) -> tuple[np.ndarray, np.ndarray]:
    """Return for each query the share of drawn ones that score higher, and the variance of that share, unbiased.

    Ties count as the rank type has it: 0, one half, or 1. Without competitors the share is 0.
    """
    worth = {RankType.OPTIMISTIC: 0.0, RankType.REALISTIC: 0.5, RankType.PESSIMISTIC: 1.0}[rank_type]
    num_drawn_Q = np.maximum(sample.num_drawn_Q, 1)
    better_Q = (sample.optimistic_Q - 1) / num_drawn_Q
    tied_Q = (sample.pessimistic_Q - sample.optimistic_Q) / num_drawn_Q
    lower_Q = (num_drawn_Q + 1 - sample.pessimistic_Q) / num_drawn_Q * (sample.num_drawn_Q > 0)
    # The mean square deviation of 1, worth and 0 in these shares, pair by pair, so that nothing cancels.
    spread_Q = better_Q * lower_Q + better_Q * tied_Q * (1 - worth) ** 2 + tied_Q * lower_Q * worth**2
    variance_Q = np.where(sample.num_drawn_Q > 1, spread_Q / np.maximum(sample.num_drawn_Q - 1, 1), math.nan)
    if not sample.with_replacement:
        variance_Q *= 1.0 - sample.num_drawn_Q / np.maximum(sample.num_competitors_Q, 1)
    return better_Q + worth * tied_Q, np.where(sample.is_exact_Q, 0.0, variance_Q)
