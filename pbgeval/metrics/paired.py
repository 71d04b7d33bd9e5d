"""Sums over the queries of two runs -> the difference of each metric, its error, interval and p-value.

METRICS.md 5: per-query differences, clustered by query key, the two sides of an edge kept together. Neither clusters
the queries into disjoint sets that both hold (through shared keys nearly all edges of a relation hang together), so the
variance adds what each way of clustering contributes (Cameron, Gelbach and Miller, Robust Inference with Multiway
Clustering, 2011): squares over units, and for each side squares over keys less those within one unit, not below 0.

The p-value is that of sign flips where few edges differ, which is when it matters: every way to exchange the runs, unit
by unit, has the same probability if they do not differ, and all are counted, on the ratio of the difference to its
error. Elsewhere it is Student's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from attrs import evolve, frozen

from pbgeval.metrics.student import ERROR_RATE, student_quantile, two_sided_probability
from pbgeval.notation import distinct
from pbgeval.stats.float_sums import float_sum
from pbgeval.stats.paired import PairedStats
from pbgeval.stats.query_metrics import QueryMetric
from pbgeval.stats.rank_types import RankType, doubled_rank

VALUE_BITS = 32  # of 1/rank: sums of 2^31 queries fit
_NEAR = 1e-6  # of a ratio: others this near to it are compared in integers
_ROUNDING = 1e-12  # variances below this part of the squares are rounding: all units agree


def values_of(metrics: Sequence[QueryMetric], counts_Q: Sequence[np.ndarray], rank_type: RankType) -> np.ndarray:
    """Return the numerators, int64 (metrics, Q), from the counts of better, tied and all competitors of each query."""
    better_Q, tied_Q, competitors_Q = counts_Q
    doubled_DQ = [doubled_rank(better_Q, tied_Q, metric.rank_type or rank_type) for metric in metrics]
    return np.stack(
        [
            metric.numerators_of_doubled(doubled_Q, competitors_Q, VALUE_BITS)
            for metric, doubled_Q in zip(metrics, doubled_DQ, strict=True)
        ]
    )


@frozen
class Difference:
    """The difference of two runs in a metric; None: too few clusters."""

    metric: str
    a: float
    b: float
    difference: float  # b less a
    standard_error: float | None
    low: float | None  # of the 95% interval of the difference
    high: float | None
    p_value: float | None  # two-sided
    direction: int  # 1: higher is better; -1: lower
    p_holm: float | None = None  # corrected for the others of its table

    @property
    def is_significant(self) -> bool:
        """Whether the corrected p-value is small."""
        return self.p_holm is not None and self.p_holm < ERROR_RATE

    @property
    def only_nominally_significant(self) -> bool:
        """Whether the interval, which is not corrected, leaves out 0 although the difference is not significant."""
        if self.low is None or self.high is None or self.is_significant:
            return False
        return self.low > 0 or self.high < 0


@frozen(eq=False)
class GroupDifferences:
    """The differences of a group of queries in all metrics."""

    group: int
    num_queries: int
    differences: tuple[Difference, ...]


def differences(
    stats: PairedStats, metrics: Sequence[QueryMetric], *, by_group: bool, scale: int = 1
) -> list[GroupDifferences]:
    """Return the differences in each group with queries, or in all queries as group 0 (none if there are no queries).

    Args:
        stats: whose metrics are these, in this order.
        metrics: what is compared.
        by_group: whether groups are compared, or all their queries together.
        scale: into how many parts each value's unit was divided.
    """
    sums = stats.by_group if by_group else stats.all
    few = [sums.few(number) for number in range(len(metrics))]
    found = []
    for group in sums.groups:
        moments = sums.table[group]
        its_keys = [table.sums(group if by_group else None) for table in stats.keys]
        of_metrics = tuple(
            _difference(metric, number, moments, _variance(moments, number, its_keys), few[number].get(group), scale)
            for number, metric in enumerate(metrics)
        )
        found.append(GroupDifferences(group, int(moments["num"].sum()), of_metrics))
    return found


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """Correct the p-values of some differences for their number by Holm's step-down method (1979).

    The k-th smallest of n is multiplied by n - k + 1 and is no smaller than those before it, nor above 1.
    """
    known = sorted((of.p_value, index) for index, of in enumerate(differences) if of.p_value is not None)
    raised = accumulate((p * (len(known) - place) for place, (p, _) in enumerate(known)), max)
    corrected = {index: min(1.0, p) for (_, index), p in zip(known, raised, strict=True)}
    return [evolve(of, p_holm=corrected.get(index)) for index, of in enumerate(differences)]


def _variance(moments: np.void, number: int, keys: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """Return the variance of the sum of a metric's changes and its degrees of freedom; None: fewer than two clusters.

    Residuals are those from the mean of their side. All is in units of the metric; `keys` are `PairedKeys.sums`.
    """
    num_effective = float(moments["num"].sum()) ** 2 / float(moments["size"].sum())
    if num_effective < 2.0 - 1e-9:
        return None
    correction = num_effective / (num_effective - 1.0)
    square = float(moments["square"][number])
    side_means = moments["change"][:, number] / np.maximum(moments["num"], 1)
    of_units = (
        square
        - 2 * float_sum(side_means * moments["size_change"][:, number])
        + float_sum((np.outer(side_means, side_means) * moments["size"]).ravel())
    )
    of_units = correction * (of_units if of_units > _ROUNDING * square else 0.0)
    more, spread = 0.0, 0.0
    for side, of_side in enumerate(keys):
        if not of_side.shape[1]:  # every query has its own
            continue
        num_K, change_K = of_side[0].astype(np.float64), of_side[1 + number].astype(np.float64)
        num_keys = float_sum(num_K) ** 2 / float_sum(num_K**2)  # of equal size that would be worth these
        if num_keys < 2.0 - 1e-9:
            return None
        mean = float(side_means[side])
        within = float(
            moments["cell_square"][side, number]
            - 2 * mean * moments["cell_size_change"][side, number]
            + mean**2 * moments["cell_sizes"][side]
        )
        of_keys = float_sum((change_K - mean * num_K) ** 2) * num_keys / (num_keys - 1)
        more += of_keys - correction * max(within, 0.0)
        spread += of_keys**2 / (num_keys - 1)
    variance = of_units + max(more, 0.0)
    freedom = num_effective - 1
    return variance, min(freedom, variance**2 / spread) if spread > 0.0 else freedom


def _difference(
    metric: QueryMetric,
    number: int,
    moments: np.void,
    found: tuple[float, float] | None,
    few: np.ndarray | None,
    scale: int,
) -> Difference:
    num, change = int(moments["num"].sum()), int(moments["change"][:, number].sum())
    of_a = int(moments["value"][:, number].sum())
    a, b = (metric.mean(value, num * scale, VALUE_BITS) for value in (of_a, of_a + change))
    assert a is not None, "groups have queries"
    assert b is not None, "groups have queries"
    unit = metric.slope / (metric.denominator(VALUE_BITS) * scale)
    difference = unit * change / num
    error = low = high = p_value = None
    if found is not None:
        variance, freedom = found
        error = unit * math.sqrt(variance) / num
        reach = student_quantile(1.0 - ERROR_RATE, max(1, int(freedom + 1e-9))) * error
        low, high = difference - reach, difference + reach
        t = math.inf if variance == 0.0 else abs(change) / math.sqrt(variance)
        p_value = two_sided_probability(t if change else 0.0, max(1.0, freedom))
    if moments["num_units"] >= 2 and not moments["num_differing"][number]:
        p_value = 1.0
    elif moments["num_units"] >= 2 and few is not None:
        p_value = flip_probability(few)
    return Difference(metric.name, a, b, difference, error, low, high, p_value, metric.direction)


def flip_probability(few: np.ndarray) -> float:
    """Return the share of all unit-wise exchanges that differ as much or more.

    How much is the sum of changes over the root of its variance, without means: they are 0 if the runs do not differ.

    Args:
        few: edges of a group that differ, as `PairedSums.few` returns them.
    """
    units, side_Q, keys, change_Q = few
    _, unit_Q = np.unique(units, return_inverse=True)
    num_units = int(unit_Q.max()) + 1
    sums_GK = [np.zeros((num_units, 1), np.int64)]  # of changes: over each unit's queries, then over those of a key
    np.add.at(sums_GK[0][:, 0], unit_Q, change_Q)
    for side in distinct(side_Q):
        here = side_Q == side
        _, key_Q = np.unique(keys[here].view(np.uint64), return_inverse=True)
        sums_GK.append(np.zeros((num_units, int(key_Q.max()) + 1), np.int64))
        np.add.at(sums_GK[-1], (unit_Q[here], key_Q), change_Q[here])
    signs_NG = 1 - 2 * ((np.arange(1 << (num_units - 1))[:, None] >> np.arange(num_units)) & 1)  # the last stays
    square_N, variance_N = _flipped(signs_NG.astype(np.float64), [sums.astype(np.float64) for sums in sums_GK])
    ratio_N = np.divide(square_N, variance_N, out=np.zeros_like(square_N), where=variance_N > 0.0)
    larger_N = ratio_N > ratio_N[0]
    near_N = np.flatnonzero(np.abs(ratio_N - ratio_N[0]) <= _NEAR * ratio_N[0])  # the first, as it was found, is one
    exact_square_N, exact_variance_N = _flipped(
        signs_NG[near_N].astype(object), [sums.astype(object) for sums in sums_GK]
    )
    larger_N[near_N] = exact_square_N * exact_variance_N[0] >= exact_square_N[0] * exact_variance_N
    return float(np.mean(larger_N))


def _flipped(signs_NG: np.ndarray, sums_GK: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the squared sum of changes and its variance for each way to flip units."""
    of_units_G1, *of_keys = sums_GK
    square_N = (signs_NG @ of_units_G1)[:, 0] ** 2
    more_N = sum(
        (((signs_NG @ of_keys_GK) ** 2).sum(1) - (of_keys_GK**2).sum() for of_keys_GK in of_keys), 0 * square_N
    )
    return square_N, (of_units_G1**2).sum() + np.maximum(more_N, 0)
