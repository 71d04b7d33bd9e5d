"""The rank metrics that need ranks alone: means, their inverses, hits at k, median, spread, count."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, sqrt

import numpy as np

from pbgeval.metrics import chance
from pbgeval.metrics.distribution import RankDistribution, weighted_median
from pbgeval.metrics.median_chance import expected_median_rank, variance_of_median_rank
from pbgeval.metrics.metric import HOYT, PYKEEN, Compute, Level, Metric, Range

NORMAL_75 = 0.6744897501960817  # the 75 % quantile of the normal distribution: the median distance from its median
NORMAL_75_ROUNDED = 0.67449  # as PyKEEN takes it where queries have weights
FROM_ONE = Range("[1, inf)", low=1.0)
SHARE = Range("(0, 1]", low=0.0, high=1.0)
SPREAD = Range("[0, inf)", low=0.0)


def of_groups(function: Callable[[chance.CandidateGroups], float | None]) -> Compute:
    """Turn a function of the numbers of candidates into one of the distribution."""
    return lambda distribution: function(distribution.groups)


def geometric_mean_rank(distribution: RankDistribution) -> float:
    """Return exp of the mean of ln r."""
    return exp(distribution.mean_log_rank)


def median_rank(distribution: RankDistribution) -> float:
    """Return the (weighted) median of the ranks."""
    return distribution.median


def variance(distribution: RankDistribution) -> float:
    """Return the mean of the squared distance from the mean (population variance)."""
    return distribution.variance


def median_absolute_deviation(distribution: RankDistribution) -> float:
    """Return the median of the distances from the median, as a multiple of that of a standard normal variable.

    With weights it is divided by .67449 as in PyKEEN, so equal weights give 4e-7 less of it than none.
    """
    distance_R = np.abs(distribution.ranks_R - distribution.median)
    distances, place_R = np.unique(distance_R, return_inverse=True)
    weights = np.bincount(place_R, distribution.weight_R).astype(np.float64)  # of at most two ranks each
    return weighted_median(distances, weights) / (NORMAL_75_ROUNDED if distribution.is_weighted else NORMAL_75)


def base_metric(
    name: str,
    synonyms: tuple[str, ...],
    direction: int | None,
    value_range: Range,
    formula: str,
    compute: Compute,
    source: str = PYKEEN,
) -> Metric:
    """Return a metric without a closed form of its level by chance."""
    return Metric(name, synonyms, direction, value_range, Level("no closed form"), formula, source, compute)


def hits_at(cutoff: int) -> Metric:
    """Return the share of ranks at most K."""
    return Metric(
        name=f"hits_at_{cutoff}",
        synonyms=(),  # any of `registry.FAMILIES`
        direction=1,
        range=Range("[0, 1]", low=0.0, high=1.0),
        chance=Level("Σ p min(K / C, 1)"),
        formula="Σ p [r ≤ K]; half ranks compare as they are (1.5 misses K = 1)",
        source=f"{PYKEEN} hits_at_k; PBG r1, r10, r50; OGB hits@k",
        compute=lambda distribution: distribution.hits_at(cutoff),
        compute_expectation=lambda distribution: chance.expected_hits_at(distribution.groups, cutoff),
        compute_variance=lambda distribution: chance.variance_of_hits_at(distribution.groups, cutoff),
        is_linear=True,
    )


def mean_reciprocal_rank_at(cutoff: int) -> Metric:
    """Return the mean of 1 / r where r is at most K, and 0 elsewhere."""
    return Metric(
        name=f"mean_reciprocal_rank_at_{cutoff}",
        synonyms=(),  # any of `registry.OPTIONAL_FAMILIES`
        direction=1,
        range=Range("[0, 1]", low=0.0, high=1.0),
        chance=Level("Σ p H₁(min(K, C)) / C"),
        formula="Σ p [r ≤ K] / r: what is known of the reciprocal rank from lists of K",
        source="OGB's WikiKG90Mv2, with K = 10",
        compute=lambda distribution: distribution.mean_reciprocal_rank_at(cutoff),
        compute_expectation=lambda distribution: chance.expected_mean_reciprocal_rank_at(distribution.groups, cutoff),
        compute_variance=lambda distribution: chance.variance_of_mean_reciprocal_rank_at(distribution.groups, cutoff),
    )


MEAN_RANK = Metric(
    name="mean_rank",
    synonyms=("arithmetic_mean_rank", "mr", "pos_rank"),
    direction=-1,
    range=FROM_ONE,
    chance=Level("Σ p (C + 1) / 2"),
    formula="Σ p r",
    source=f"{PYKEEN} arithmetic_mean_rank; PBG pos_rank",
    compute=RankDistribution.mean_rank,
    compute_expectation=of_groups(chance.expected_mean_rank),
    compute_variance=of_groups(chance.variance_of_mean_rank),
    is_linear=True,
)
MEAN_RECIPROCAL_RANK = Metric(
    name="mean_reciprocal_rank",
    synonyms=("inverse_harmonic_mean_rank", "ihmr", "mrr", "mrr_list"),
    direction=1,
    range=SHARE,
    chance=Level("Σ p H₁(C) / C"),
    formula="Σ p / r",
    source=f"{PYKEEN} inverse_harmonic_mean_rank; PBG mrr; OGB mrr_list, of which it is the mean",
    compute=RankDistribution.mean_reciprocal_rank,
    compute_expectation=of_groups(chance.expected_mean_reciprocal_rank),
    compute_variance=of_groups(chance.variance_of_mean_reciprocal_rank),
    is_linear=True,
)
GEOMETRIC_MEAN_RANK = Metric(
    name="geometric_mean_rank",
    synonyms=("gmr",),
    direction=-1,
    range=FROM_ONE,
    chance=Level("exp(Σ ln((1 / C) Σ_{j ≤ C} j^p))"),
    formula="exp(Σ p ln r)",
    source=f"{PYKEEN}; {HOYT}",
    compute=geometric_mean_rank,
    compute_expectation=of_groups(chance.expected_geometric_mean_rank),
    compute_variance=of_groups(chance.variance_of_geometric_mean_rank),
)
MEDIAN_RANK = Metric(
    name="median_rank",
    synonyms=(),
    direction=-1,
    range=FROM_ONE,
    chance=Level("by dynamic programming, up to a size"),
    formula="the least r with more than half of the weight at or below it; at exactly half, the mean with the next",
    source=f"{PYKEEN}; its expectation for an even number of queries is that of the upper median, ours of the median",
    compute=median_rank,
    compute_expectation=of_groups(expected_median_rank),
    compute_variance=of_groups(variance_of_median_rank),
)
UNEXPECTED_METRICS = (  # without closed forms of their level by chance
    base_metric(
        "inverse_arithmetic_mean_rank", ("iamr",), 1, SHARE, "1 / mean_rank", lambda ranks: 1.0 / ranks.mean_rank()
    ),
    base_metric(
        "inverse_geometric_mean_rank",
        ("igmr",),
        1,
        SHARE,
        "1 / geometric_mean_rank",
        lambda ranks: 1.0 / geometric_mean_rank(ranks),
    ),
    base_metric(
        "harmonic_mean_rank", ("hmr",), -1, FROM_ONE, "1 / Σ p / r", lambda ranks: 1.0 / ranks.mean_reciprocal_rank()
    ),
    base_metric("inverse_median_rank", (), 1, SHARE, "1 / median_rank", lambda ranks: 1.0 / median_rank(ranks)),
    base_metric(
        "standard_deviation",
        ("rank_std", "std"),
        None,
        SPREAD,
        "√variance",
        lambda ranks: sqrt(variance(ranks)),
    ),
    base_metric("variance", ("rank_var", "var"), None, SPREAD, "Σ p (r - mean_rank)²", variance),
    base_metric(
        "median_absolute_deviation",
        ("rank_mad", "mad"),
        None,
        SPREAD,
        f"median of |r - median_rank|, / {NORMAL_75} (with weights / {NORMAL_75_ROUNDED})",
        median_absolute_deviation,
    ),
)
COUNT = Metric(
    name="count",
    synonyms=("rank_count",),
    direction=None,
    range=Range("whole numbers from 0", low=0.0),
    chance=Level("the count"),
    formula="number of queries, whatever they weigh",
    source=f"{PYKEEN}, for queries without weights",
    compute=lambda ranks: ranks.num_queries,
    needs_weight=False,
)
