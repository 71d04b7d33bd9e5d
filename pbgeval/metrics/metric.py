"""What a rank metric is: names, range, direction, level by chance, and how it is computed from a distribution."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from pbgeval.metrics.distribution import RankDistribution

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


@frozen
class Level:
    """A number that may depend on the queries: what it is in words, and the number where it is the same for all."""

    text: str
    value: float | None = None


@frozen
class Range:
    """The values that a metric can have: in words, and the ends that are the same for all queries."""

    text: str
    low: float | None = None
    high: float | None = None


@frozen(eq=False)
class Definition:
    """What a metric is, for people."""

    name: str
    synonyms: tuple[str, ...]
    direction: int | None  # +1: higher is better; -1: lower is better; None: neither
    range: Range
    chance: Level  # what it is for ranks drawn by chance
    formula: str
    source: str


@frozen(eq=False)
class Metric(Definition):
    """A rank metric. `value`, `expectation` and `variance` are None where no query has a positive weight."""

    compute: Compute
    compute_expectation: Compute | None = None
    compute_variance: Compute | None = None
    is_linear: bool = False  # it follows from mean rank, mean reciprocal rank, or hits, and the numbers of candidates
    needs_weight: bool = True  # a mean of nothing is None, a count of nothing 0

    def value(self, distribution: RankDistribution) -> Value:
        """Return the metric of some ranks."""
        return self.compute(distribution) if distribution.total_weight or not self.needs_weight else None

    def has_rank_type(self, rank_type: str) -> bool:
        """Whether ranks of a type have it: means over all orders of ties only what is linear in the queries."""
        return rank_type != EXPECTED or self.is_linear or not self.needs_weight

    @property
    def has_expectation(self) -> bool:
        """Whether there is a closed form of the expectation by chance."""
        return self.compute_expectation is not None

    @property
    def has_variance(self) -> bool:
        """Whether there is a closed form of the variance by chance."""
        return self.compute_variance is not None

    def expectation(self, distribution: RankDistribution) -> Value:
        """Return the expectation by chance, for queries of the same weights and numbers of candidates.

        None if there is no closed form, or if it takes too long (the median's; see `median_chance`).
        """
        if self.compute_expectation is None or not distribution.total_weight:
            return None
        return self.compute_expectation(distribution)

    def variance(self, distribution: RankDistribution) -> Value:
        """Return the variance by chance; None as for `expectation`."""
        if self.compute_variance is None or not distribution.total_weight:
            return None
        return self.compute_variance(distribution)


def quotient_or_zero(numerator: float, denominator: float) -> float:
    """Divide; 0 where the denominator is 0, as chance alone decides nothing there (all candidates within K, say)."""
    return numerator / denominator if denominator else 0.0
