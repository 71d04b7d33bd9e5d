"""The list of rank metrics, and the names by which they are found.

Documentation, checks of names and every table of rank metrics are made from this list, so a metric is added here.
Keys are ours; the synonyms are PyKEEN's keys and synonyms, OGB's and PBG's, and the usual abbreviations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from math import exp, expm1, sqrt
from types import MappingProxyType

import numpy as np
from attrs import frozen

from pbgeval.metrics.distribution import (
    CandidateGroups,
    Level,
    RankDistribution,
    expected_mean_reciprocal_rank,
    variance_of_hits_at,
    variance_of_mean_reciprocal_rank,
    weighted_median,
)
from pbgeval.stats.keyed_sums import first_of_each

# What a rank metric is: names, range, direction, level by chance, and how it is computed from a distribution.

Value = float | int | None
Compute = Callable[[RankDistribution], Value]

EXPECTED = "expected"  # rank type: the mean of a metric over all orders of tied candidates
PYKEEN = "PyKEEN"
BERRENDORF = (
    "Berrendorf et al., On the Ambiguity of Rank-Based Evaluation of Entity Alignment or Link Prediction Methods (2020)"
)
HOYT = (
    "Hoyt et al., A Unified Framework for Rank-based Evaluation Metrics for Link Prediction in Knowledge Graphs (2022)"
)


@frozen(eq=False)
class Definition:
    """The description of a metric."""

    name: str
    synonyms: tuple[str, ...]
    direction: int | None  # +1: higher is better; -1: lower is better; None: neither
    range: str  # of its values
    chance: str  # what it is for ranks drawn by chance
    formula: str
    source: str


@frozen(eq=False)
class Metric(Definition):
    """A rank metric. `value`, `expectation` and `variance` are None where no query has a positive weight."""

    compute: Compute | None  # None: ranks do not tell it (`QueryMetric.needs_pairs`)
    compute_expectation: Level | None = None
    compute_variance: Level | None = None
    is_linear: bool = False  # it follows from means that have `QueryMetric.over_ties`, and the numbers of candidates
    needs_weight: bool = True  # a mean of nothing is None, a count of nothing 0

    def value(self, distribution: RankDistribution) -> Value:
        """Return the metric of some ranks; a mean as it is given, if it is."""
        if not distribution.total_weight and self.needs_weight:
            return None
        given = distribution.means(self.name)
        return self.compute(distribution) if given is None and self.compute is not None else given

    def has_rank_type(self, rank_type: str) -> bool:
        """Return whether the metric exists for a rank type; `expected` has linear ones."""
        return rank_type != EXPECTED or self.is_linear or not self.needs_weight

    def expectation(self, distribution: RankDistribution) -> float | None:
        """Return the expectation by chance, for queries of the same weights and numbers of candidates.

        None if there is no closed form.
        """
        return distribution.groups.by_chance(self.compute_expectation)

    def variance(self, distribution: RankDistribution) -> float | None:
        """Return the variance by chance; None as for `expectation`."""
        return distribution.groups.by_chance(self.compute_variance)


def quotient_or_zero(numerator: float, denominator: float) -> float:
    """Divide; return 0 if the denominator is 0, where chance decides nothing."""
    return numerator / denominator if denominator else 0.0


# The rank metrics that need ranks alone: means, their inverses, hits at k, median, spread, count.

NORMAL_75 = 0.6744897501960817  # the 75 % quantile of the normal distribution: the median distance from its median
NORMAL_75_ROUNDED = 0.67449  # as PyKEEN takes it where queries have weights
FROM_ONE = "[1, inf)"
SHARE = "[0, 1]"
ABOVE_ZERO = "(0, 1]"
FROM_ZERO = "[0, inf)"
SIGNED = "[-1, 1]"


def median_absolute_deviation(distribution: RankDistribution) -> float:
    """Return the median of the distances from the median, as a multiple of that of a standard normal variable.

    With weights it is divided by .67449 as in PyKEEN, so equal weights give 4e-7 less of it than none.
    """
    distance_K = np.abs(distribution.ranks_K - distribution.median)
    order = np.argsort(distance_K, kind="stable")  # merges what falls and what rises
    distances, first_K = first_of_each(distance_K[order])
    weights = np.add.reduceat(distribution.weight_K[order], first_K)  # of at most two ranks each
    return weighted_median(distances, weights) / (NORMAL_75_ROUNDED if distribution.is_weighted else NORMAL_75)


def base_metric(
    name: str,
    synonyms: tuple[str, ...],
    direction: int | None,
    value_range: str,
    formula: str,
    compute: Compute,
) -> Metric:
    """Return a metric without a closed form of its level by chance."""
    return Metric(name, synonyms, direction, value_range, "no closed form", formula, PYKEEN, compute)


@cache
def hits_at(cutoff: int) -> Metric:
    """Return the share of ranks at most K."""
    return Metric(
        name=f"hits_at_{cutoff}",
        synonyms=(),  # any of `registry.FAMILIES`
        direction=1,
        range=SHARE,
        chance="Σ p min(K / C, 1)",
        formula="Σ p [r ≤ K]; half ranks compare as they are (1.5 misses K = 1)",
        source=f"{PYKEEN} hits_at_k; PBG r1, r10, r50; OGB hits@k",
        compute=lambda distribution: distribution.hits_at(cutoff),
        compute_expectation=lambda groups: groups.mean(np.minimum(cutoff / groups.candidates_G, 1.0)),
        compute_variance=lambda groups: variance_of_hits_at(groups, cutoff),
        is_linear=True,
    )


def mean_reciprocal_rank_at(cutoff: int) -> Metric:
    """Return the mean of 1 / r where r is at most K, and 0 elsewhere."""
    return Metric(
        name=f"mean_reciprocal_rank_at_{cutoff}",
        synonyms=(),  # any of `registry.OPTIONAL_FAMILIES`
        direction=1,
        range=SHARE,
        chance="Σ p H₁(min(K, C)) / C",
        formula="Σ p [r ≤ K] / r: what is known of the reciprocal rank from lists of K",
        source="OGB's WikiKG90Mv2, with K = 10",
        compute=lambda distribution: distribution.mean_reciprocal_rank(cutoff),
        compute_expectation=lambda groups: expected_mean_reciprocal_rank(groups, cutoff),
        compute_variance=lambda groups: variance_of_mean_reciprocal_rank(groups, cutoff),
    )


MEAN_RANK = Metric(
    name="mean_rank",
    synonyms=("arithmetic_mean_rank", "mr", "pos_rank"),
    direction=-1,
    range=FROM_ONE,
    chance="Σ p (C + 1) / 2",
    formula="Σ p r",
    source=f"{PYKEEN} arithmetic_mean_rank; PBG pos_rank",
    compute=lambda ranks: ranks.mean(ranks.ranks_K),
    compute_expectation=lambda groups: groups.mean((groups.candidates_G + 1.0) / 2.0),
    compute_variance=lambda groups: groups.variance_of_mean(  # (C^2 - 1) / 12 of one query
        (groups.candidates_G - 1.0) * (groups.candidates_G + 1.0) / 12.0
    ),
    is_linear=True,
)
MEAN_RECIPROCAL_RANK = Metric(
    name="mean_reciprocal_rank",
    synonyms=("inverse_harmonic_mean_rank", "ihmr", "mrr", "mrr_list"),
    direction=1,
    range=ABOVE_ZERO,
    chance="Σ p H₁(C) / C",
    formula="Σ p / r",
    source=f"{PYKEEN} inverse_harmonic_mean_rank; PBG mrr; OGB mrr_list, of which it is the mean",
    compute=RankDistribution.mean_reciprocal_rank,
    compute_expectation=expected_mean_reciprocal_rank,
    compute_variance=variance_of_mean_reciprocal_rank,
    is_linear=True,
)
GEOMETRIC_MEAN_RANK = Metric(
    name="geometric_mean_rank",
    synonyms=("gmr",),
    direction=-1,
    range=FROM_ONE,
    chance="exp(Σ ln((1 / C) Σ_{j ≤ C} j^p))",
    formula="exp(Σ p ln r)",
    source=f"{PYKEEN}; {HOYT}",
    compute=lambda ranks: exp(ranks.mean_log_rank),
    compute_expectation=lambda groups: exp(groups.log_geometric_mean),
    compute_variance=lambda groups: (  # exp(2 sum L(p)) (exp(sum L(2p) - 2 sum L(p)) - 1)
        exp(2.0 * groups.log_geometric_mean) * expm1(groups.log_geometric_spread)
    ),
)
METRICS_WITHOUT_EXPECTATION = (  # by chance, in closed form
    base_metric(
        "median_rank",
        (),
        -1,
        FROM_ONE,
        "the least r with more than half of the weight at or below it; at exactly half, the mean with the next",
        lambda ranks: ranks.median,
    ),
    base_metric(
        "inverse_arithmetic_mean_rank",
        ("iamr",),
        1,
        ABOVE_ZERO,
        "1 / mean_rank",
        lambda ranks: 1.0 / _known(MEAN_RANK.value(ranks)),
    ),
    base_metric(
        "inverse_geometric_mean_rank",
        ("igmr",),
        1,
        ABOVE_ZERO,
        "1 / geometric_mean_rank",
        lambda ranks: 1.0 / exp(ranks.mean_log_rank),
    ),
    base_metric(
        "harmonic_mean_rank",
        ("hmr",),
        -1,
        FROM_ONE,
        "1 / Σ p / r",
        lambda ranks: 1.0 / _known(MEAN_RECIPROCAL_RANK.value(ranks)),
    ),
    base_metric("inverse_median_rank", (), 1, ABOVE_ZERO, "1 / median_rank", lambda ranks: 1.0 / ranks.median),
    base_metric(
        "standard_deviation",
        ("rank_std", "std"),
        None,
        FROM_ZERO,
        "√variance",
        lambda ranks: sqrt(ranks.variance),
    ),
    base_metric("variance", ("rank_var", "var"), None, FROM_ZERO, "Σ p (r - mean_rank)²", lambda ranks: ranks.variance),
    base_metric(
        "median_absolute_deviation",
        ("rank_mad", "mad"),
        None,
        FROM_ZERO,
        f"median of |r - median_rank|, / {NORMAL_75} (with weights / {NORMAL_75_ROUNDED})",
        median_absolute_deviation,
    ),
)
COUNT = Metric(
    name="count",
    synonyms=("rank_count",),
    direction=None,
    range="whole numbers from 0",
    chance="the count",
    formula="number of queries, whatever they weigh",
    source=f"{PYKEEN}, for queries without weights",
    compute=lambda ranks: ranks.num_queries,
    needs_weight=False,
)


# The rank metrics that are set against chance: adjusted indices, the adjusted mean rank, and z scores.
#
# Each is affine in a base metric M, whose expectation E and variance are those of ranks drawn by chance, so its own
# expectation and variance are constants or follow from them. Where the denominator is 0, chance decides nothing (every
# query has one candidate, or all candidates are within K) and the value is 0.

UP_TO_ONE = "[-E / (1 - E), 1]"
ANY_REAL = "(-inf, inf)"


def adjusted_index(
    base: Metric, name: str, synonyms: tuple[str, ...], value_range: str = UP_TO_ONE, source: str = HOYT
) -> Metric:
    """Return (M - E) / (1 - E): 1 where all ranks are 1, 0 by chance."""

    def value(distribution: RankDistribution) -> float:
        expected = _known(base.expectation(distribution))
        return quotient_or_zero(_known(base.value(distribution)) - expected, 1.0 - expected)

    def variance(groups: CandidateGroups) -> float:
        expected, spread = (_known(groups.by_chance(of)) for of in (base.compute_expectation, base.compute_variance))
        return quotient_or_zero(spread, (1.0 - expected) ** 2)

    formula = f"(M - E) / (1 - E), M = {base.name}"
    return Metric(name, synonyms, 1, value_range, "0", formula, source, value, lambda _: 0.0, variance, base.is_linear)


def z_score(base: Metric, name: str, synonyms: tuple[str, ...]) -> Metric:
    """Return (M - E) / sd, with the sign that makes higher better: 0 with variance 1 by chance."""
    sign = 1 if base.direction == 1 else -1

    def value(distribution: RankDistribution) -> float:
        above = _known(base.value(distribution)) - _known(base.expectation(distribution))
        return quotient_or_zero(sign * above, sqrt(_known(base.variance(distribution))))

    def variance(groups: CandidateGroups) -> float:
        return 1.0 if groups.by_chance(base.compute_variance) else 0.0

    formula = f"{'' if sign == 1 else '-'}(M - E) / sd, M = {base.name}"
    return Metric(name, synonyms, 1, ANY_REAL, "0", formula, HOYT, value, lambda _: 0.0, variance, base.is_linear)


def _known(value: Value) -> float:
    assert value is not None, "it is asked for only where there are queries and a closed form"
    return value


ADJUSTED_MEAN_RANK = Metric(
    name="adjusted_arithmetic_mean_rank",
    synonyms=("adjusted_mean_rank", "amr", "aamr"),
    direction=-1,
    range="(0, 2); [2 / (C + 1), 2 C / (C + 1)] where all C are equal",
    chance="1",
    formula="M / E, M = mean_rank; without weights 2 Σ r / Σ (C + 1)",
    source=f"{PYKEEN}; {BERRENDORF}",
    compute=lambda ranks: _known(MEAN_RANK.value(ranks)) / _known(MEAN_RANK.expectation(ranks)),  # at least 1
    compute_expectation=lambda _: 1.0,
    compute_variance=lambda groups: (
        _known(groups.by_chance(MEAN_RANK.compute_variance))
        / _known(groups.by_chance(MEAN_RANK.compute_expectation)) ** 2
    ),
    is_linear=True,
)
ADJUSTED_METRICS = (
    ADJUSTED_MEAN_RANK,
    adjusted_index(
        MEAN_RANK,
        "adjusted_mean_rank_index",
        ("adjusted_arithmetic_mean_rank_index", "amri", "aamri"),
        SIGNED,
        f"{PYKEEN} adjusted_arithmetic_mean_rank_index; {BERRENDORF}",
    ),
    adjusted_index(GEOMETRIC_MEAN_RANK, "adjusted_geometric_mean_rank_index", ("gmri", "agmri")),
    adjusted_index(
        MEAN_RECIPROCAL_RANK,
        "adjusted_inverse_harmonic_mean_rank",
        ("amrr", "aihmr", "adjusted_mrr", "adjusted_mean_reciprocal_rank"),
    ),
    z_score(MEAN_RANK, "z_arithmetic_mean_rank", ("z_mean_rank", "zamr", "zmr")),
    z_score(GEOMETRIC_MEAN_RANK, "z_geometric_mean_rank", ("zgmr",)),
    z_score(MEAN_RECIPROCAL_RANK, "z_inverse_harmonic_mean_rank", ("z_mean_reciprocal_rank", "zmrr", "zihmr")),
)


DEFAULT_CUTOFF = 10  # what PyKEEN means by "hits@k"; its member stands for a family in lists
MAX_CUTOFF_DIGITS = 15  # beyond, a cut-off is not exact as a float


@frozen(eq=False)
class MetricFamily:
    """Metrics that differ by their cut-off K, from 1."""

    prefix: str  # of their names; the cut-off follows
    words: tuple[str, ...]  # that may stand in place of the prefix, before "_at_", "@", "_at" or nothing
    names: tuple[str, ...]  # further names of the member with the default cut-off
    of_cutoff: Callable[[int], Metric]

    def cutoff_of(self, name: str) -> int | None:
        """Return the cut-off that a name means: hits_at_3, hits@3, h@3, r3; hits@k is hits at 10."""
        if name in self.names:
            return DEFAULT_CUTOFF
        words = "|".join(map(re.escape, self.words))
        found = re.fullmatch(rf"(?:{words})(?:(?:_at_|@|_at|)([0-9]+)(?:_list)?|(?:_at_|@)k?)", name)
        if found is None:
            return None
        digits = found[1] or str(DEFAULT_CUTOFF)
        return int(digits) if 0 < int(digits[: MAX_CUTOFF_DIGITS + 1]) < 10**MAX_CUTOFF_DIGITS else None


METRICS: tuple[Metric, ...] = (
    COUNT,
    MEAN_RANK,
    MEAN_RECIPROCAL_RANK,
    GEOMETRIC_MEAN_RANK,
    *METRICS_WITHOUT_EXPECTATION,
    *ADJUSTED_METRICS,
)
FAMILIES: tuple[MetricFamily, ...] = (
    MetricFamily("hits_at_", ("hits", "h", "r"), (), hits_at),
    MetricFamily(
        "adjusted_hits_at_",
        ("adjusted_hits", "ahits", "ah"),
        ("ahk",),
        lambda cutoff: adjusted_index(hits_at(cutoff), f"adjusted_hits_at_{cutoff}", ()),
    ),
    MetricFamily(
        "z_hits_at_",
        ("z_hits", "zhits", "zahits", "zah", "zh"),
        ("zahk", "zhk"),
        lambda cutoff: z_score(hits_at(cutoff), f"z_hits_at_{cutoff}", ()),
    ),
)
# Not among the metrics of every report: they are there when asked for.
OPTIONAL_FAMILIES: tuple[MetricFamily, ...] = (
    MetricFamily("mean_reciprocal_rank_at_", ("mean_reciprocal_rank", "mrr", "ihmr"), (), mean_reciprocal_rank_at),
)
ALL_FAMILIES = (*FAMILIES, *OPTIONAL_FAMILIES)
SYNONYMS = MappingProxyType({synonym: metric.name for metric in METRICS for synonym in metric.synonyms})
_BY_NAME = MappingProxyType({metric.name: metric for metric in METRICS})


def known_rank_metrics(cutoffs: Iterable[int]) -> tuple[Metric, ...]:
    """Return all metrics in order, those of the families at these cut-offs."""
    return METRICS + tuple(family.of_cutoff(cutoff) for family in FAMILIES for cutoff in cutoffs)


def metric_key(name: str) -> str:
    """Return the key of a lower-case name without side and rank type, or the name."""
    for family in ALL_FAMILIES if name not in SYNONYMS else ():
        if (cutoff := family.cutoff_of(name)) is not None:
            return f"{family.prefix}{cutoff}"
    return SYNONYMS.get(name, name)


def find_metric(name: str) -> Metric | None:
    """Return the rank metric of a name as `metric_key` takes it; None if there is none."""
    key = metric_key(name)
    cutoffs = ((family, family.cutoff_of(key)) for family in ALL_FAMILIES)
    return next((family.of_cutoff(k) for family, k in cutoffs if k is not None), _BY_NAME.get(key))
