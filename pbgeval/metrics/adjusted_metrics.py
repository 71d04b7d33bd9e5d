"""The rank metrics that are set against chance: adjusted indices, the adjusted mean rank, and z scores.

Each is affine in a base metric M, whose expectation E and variance are those of ranks drawn by chance, so its own
expectation and variance are constants or follow from them. Where the denominator is 0, chance decides nothing (every
query has one candidate, or all candidates are within K) and the value is 0.
"""

from __future__ import annotations

from math import sqrt

from pbgeval.metrics.base_metrics import GEOMETRIC_MEAN_RANK, MEAN_RANK, MEAN_RECIPROCAL_RANK, hits_at
from pbgeval.metrics.distribution import RankDistribution
from pbgeval.metrics.metric import BERRENDORF, HOYT, PYKEEN, Level, Metric, Range, quotient_or_zero

UP_TO_ONE = Range("[-E / (1 - E), 1]", high=1.0)
ANY_REAL = Range("(-inf, inf)")


def adjusted_index(
    base: Metric, name: str, synonyms: tuple[str, ...], value_range: Range = UP_TO_ONE, source: str = HOYT
) -> Metric:
    """Return (M - E) / (1 - E): 1 where all ranks are 1, 0 by chance."""

    def value(distribution: RankDistribution) -> float:
        by_chance = _expectation(base, distribution)
        return quotient_or_zero(_value(base, distribution) - by_chance, 1.0 - by_chance)

    def expectation(_: RankDistribution) -> float:
        return 0.0

    def variance(distribution: RankDistribution) -> float:
        return quotient_or_zero(_variance(base, distribution), (1.0 - _expectation(base, distribution)) ** 2)

    formula = f"(M - E) / (1 - E), M = {base.name}"
    level = Level("0", 0.0)
    return Metric(name, synonyms, 1, value_range, level, formula, source, value, expectation, variance, base.is_linear)


def z_score(base: Metric, name: str, synonyms: tuple[str, ...]) -> Metric:
    """Return (M - E) / sd, with the sign that makes higher better: 0 with variance 1 by chance."""
    sign = 1 if base.direction == 1 else -1

    def value(distribution: RankDistribution) -> float:
        above = _value(base, distribution) - _expectation(base, distribution)
        return quotient_or_zero(sign * above, sqrt(_variance(base, distribution)))

    def expectation(_: RankDistribution) -> float:
        return 0.0

    def variance(distribution: RankDistribution) -> float:
        return 1.0 if _variance(base, distribution) else 0.0

    formula = f"{'' if sign == 1 else '-'}(M - E) / sd, M = {base.name}"
    level = Level("0", 0.0)
    return Metric(name, synonyms, 1, ANY_REAL, level, formula, HOYT, value, expectation, variance, base.is_linear)


def adjusted_hits_at(cutoff: int) -> Metric:
    """Return the adjusted index of hits at K."""
    return adjusted_index(hits_at(cutoff), f"adjusted_hits_at_{cutoff}", ())


def z_hits_at(cutoff: int) -> Metric:
    """Return the z score of hits at K."""
    return z_score(hits_at(cutoff), f"z_hits_at_{cutoff}", ())


def _value(base: Metric, distribution: RankDistribution) -> float:
    value = base.value(distribution)
    assert value is not None, "it is asked for only where there are queries"
    return value


def _expectation(base: Metric, distribution: RankDistribution) -> float:
    expectation = base.expectation(distribution)
    assert expectation is not None, f"{base.name} has a closed form"
    return expectation


def _variance(base: Metric, distribution: RankDistribution) -> float:
    variance = base.variance(distribution)
    assert variance is not None, f"{base.name} has a closed form"
    return variance


def _over_expectation(distribution: RankDistribution) -> float:
    return _value(MEAN_RANK, distribution) / _expectation(MEAN_RANK, distribution)  # which is at least 1


def _variance_over_expectation(distribution: RankDistribution) -> float:
    return _variance(MEAN_RANK, distribution) / _expectation(MEAN_RANK, distribution) ** 2


ADJUSTED_MEAN_RANK = Metric(
    name="adjusted_arithmetic_mean_rank",
    synonyms=("adjusted_mean_rank", "amr", "aamr"),
    direction=-1,
    range=Range("(0, 2); [2 / (C + 1), 2 C / (C + 1)] where all C are equal", low=0.0, high=2.0),
    chance=Level("1", 1.0),
    formula="M / E, M = mean_rank; without weights 2 Σ r / Σ (C + 1)",
    source=f"{PYKEEN}; {BERRENDORF}",
    compute=_over_expectation,
    compute_expectation=lambda _: 1.0,
    compute_variance=_variance_over_expectation,
    is_linear=True,
)
ADJUSTED_METRICS = (
    ADJUSTED_MEAN_RANK,
    adjusted_index(
        MEAN_RANK,
        "adjusted_mean_rank_index",
        ("adjusted_arithmetic_mean_rank_index", "amri", "aamri"),
        Range("[-1, 1]", low=-1.0, high=1.0),
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
