"""Metrics that follow from sums over queries: what each query adds, in whole numbers.

A metric is start + slope * (sum of numerators) / (sum of denominators). Statistics, intervals, paired comparisons,
macro averages and the monitor all read these definitions. To add a metric to all of them, add it to `query_metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from attrs import frozen

from pbgeval.notation import Floats
from pbgeval.stats.rank_types import Array, RankType
from pbgeval.stats.series import mean_reciprocal

if TYPE_CHECKING:
    from torch import Tensor

    from pbgeval.stats.ranks import RankCounts

Sum = TypeVar("Sum", int, Floats)  # one, or one of each group

# What a metric is a mean over, by the name of the column that counts it
QUERIES = "num_queries"
COMPETING_QUERIES = "num_competing_queries"  # those with competitors
COMPETITORS = "num_competitors"


@frozen(eq=False)
class QueryMetric:
    """A metric that is a ratio of sums over queries."""

    name: str
    direction: int  # 1: higher is better; -1: lower
    # (doubled rank, competitors), tensors or arrays -> whole numbers of units, or float64 in [0, 1]
    of_query: Callable[[Any, Any], Any]
    units: int | None = None  # of a numerator in 1; None: it is a fraction, of which a reader keeps some bits
    per: str = QUERIES  # what is counted by the denominator
    start: int = 0
    slope: int = 1
    rank_type: RankType | None = None  # that it is always of; None: of any
    rest_of: QueryMetric | None = None  # whose numerators and its own add up to what is counted: no sum of its own
    is_share: bool = True  # the ratio of the sums lies in [0, 1]
    needs_pairs: bool = False  # ranks and numbers of candidates, apart from each other, do not tell it
    # (best rank, worst rank, competitors) -> the mean over all orders of the ties, float64 (Q,); per query alone
    over_ties: Callable[[Floats, Floats, Floats], Floats] | None = None

    def denominator(self, bits: int) -> int:
        """Return what the denominator of one counted query (or competitor) is, where fractions have some bits."""
        return 1 << bits if self.units is None else self.units

    def numerators(self, counts: RankCounts, rank_type: RankType, bits: int) -> Tensor:
        """Return what each query adds, int64 (Q,); fractions are rounded once, to `bits` bits."""
        return self.numerators_of_doubled(
            counts.doubled_rank(self.rank_type or rank_type), counts.num_competitors_Q, bits
        )

    def numerators_of_doubled(self, doubled_Q: Array, num_competitors_Q: Array, bits: int) -> Array:
        """Return `numerators` from twice the ranks, tensors or arrays."""
        found_Q: Array = self.of_query(doubled_Q, num_competitors_Q)
        return fixed_point(found_Q, bits) if self.units is None else as_int64(found_Q)

    def numerator(self, sums: Callable[[str], Sum], rank_type: RankType) -> Sum:
        """Return the sum of numerators from the columns of `StatsLayout`."""
        if self.rest_of is not None:
            return (self.units or 0) * sums(self.per) - self.rest_of.numerator(sums, rank_type)
        return sums(self.name if self.rank_type is not None else f"{rank_type.value}.{self.name}")

    def counted(self, num_competitors_Q: Array) -> Array:
        """Return what each query counts for in the denominator, int64 (Q,)."""
        if self.per == COMPETITORS:
            return num_competitors_Q
        return as_int64(num_competitors_Q >= (0 if self.per == QUERIES else 1))

    def mean(self, numerator: float, counted: float, bits: int) -> float | None:
        """Return the metric from sums of `numerators` and `counted`, rounded once; None where nothing was counted."""
        denominator = counted * self.denominator(bits)
        return ratio(self.start * denominator + self.slope * numerator, denominator)


def ratio(numerator: float, denominator: float) -> float | None:
    """Divide with one rounding, integers of any size too; None where nothing was counted."""
    return numerator / denominator if denominator else None  # Python rounds the quotient of integers correctly


def fixed_point(values: Array, bits: int) -> Array:
    """Round float64 values to integers of 2^-bits: IEEE division and rounding, the same bits on any machine."""
    return as_int64((values * 2.0**bits).round())  # half to even, as both libraries round


def as_int64(values: Array) -> Array:
    """Return a tensor or an array of integers."""
    return values.astype(np.int64) if isinstance(values, np.ndarray) else values.long()


def as_float64(values: Array) -> Array:
    """Return a tensor or an array of doubles."""
    return values.astype(np.float64) if isinstance(values, np.ndarray) else values.double()


MEAN_RANK = QueryMetric(
    "mean_rank",
    -1,
    lambda doubled_Q, _: doubled_Q - 2,
    units=2,
    start=1,
    is_share=False,
    over_ties=lambda best_Q, worst_Q, _: (best_Q + worst_Q) / 2.0,
)
MEAN_RECIPROCAL_RANK = QueryMetric(
    "mean_reciprocal_rank",
    1,
    lambda doubled_Q, _: 2.0 / as_float64(doubled_Q),
    over_ties=lambda best_Q, worst_Q, _: mean_reciprocal(best_Q, worst_Q),
)
ADJUSTED_MEAN_RANK_INDEX = QueryMetric(  # twice the share of all competitors that are beaten, less 1
    "adjusted_mean_rank_index",
    1,
    lambda doubled_Q, num_competitors_Q: 2 * num_competitors_Q - (doubled_Q - 2),
    units=2,
    per=COMPETITORS,
    start=-1,
    slope=2,
    rest_of=MEAN_RANK,
)
QUERY_AUC = QueryMetric(  # the mean share of competitors that are beaten, ties one half
    "query_auc",
    1,
    lambda doubled_Q, num_competitors_Q: (
        (1.0 - as_float64(doubled_Q - 2) / (2 * num_competitors_Q).clip(min=1)) * (num_competitors_Q > 0)
    ),
    per=COMPETING_QUERIES,
    rank_type=RankType.REALISTIC,
    needs_pairs=True,
)


@cache
def hits_at(cutoff: int) -> QueryMetric:
    """Return the share of ranks at most K; half ranks compare as they are."""
    return QueryMetric(
        f"hits_at_{cutoff}",
        1,
        lambda doubled_Q, _: doubled_Q <= 2 * cutoff,
        units=1,
        over_ties=lambda best_Q, worst_Q, _: np.clip((cutoff - best_Q + 1.0) / (worst_Q - best_Q + 1.0), 0.0, 1.0),
    )


@cache
def query_metrics(cutoffs: tuple[int, ...]) -> tuple[QueryMetric, ...]:
    """Return the metrics that every table of ranks has, each of every rank type."""
    return (MEAN_RANK, MEAN_RECIPROCAL_RANK, *map(hits_at, cutoffs))


@cache
def keyed_metrics(cutoffs: tuple[int, ...], *, adjusted: bool = True) -> list[tuple[str, QueryMetric, RankType]]:
    """Return `<rank type>.<metric>` and `query_auc`, each with its definition; `adjusted`: also the index."""
    metrics = (*query_metrics(cutoffs), *(ADJUSTED_MEAN_RANK_INDEX,) * adjusted)
    return [
        *((f"{kind.value}.{metric.name}", metric, kind) for kind in RankType for metric in metrics),
        (QUERY_AUC.name, QUERY_AUC, RankType.REALISTIC),
    ]


def find_query_metric(name: str) -> QueryMetric | None:
    """Return the metric of a name; None if it is no ratio of sums over queries."""
    digits = name.removeprefix("hits_at_")
    cutoffs = (int(digits),) if digits != name and digits.isdecimal() else ()
    metrics = (*query_metrics(cutoffs), ADJUSTED_MEAN_RANK_INDEX, QUERY_AUC)
    return next((metric for metric in metrics if metric.name == name), None)
