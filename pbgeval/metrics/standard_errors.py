"""Sums by groups of clusters -> standard errors of means over queries: how they vary with the draw of the test edges.

As in `metrics/paired.py`, the two queries of an edge depend on each other, and so do the queries of one key. The
variance of a sum of residuals, each from the mean of its side, is that of edges plus, for each side, that of keys less
that of single queries, but not below 0 (Cameron, Gelbach and Miller, Robust Inference with Multiway Clustering, 2011).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pbgeval.notation import Floats, Side, labels_of
from pbgeval.stats.cluster_sums import BY_EDGE, BY_KEY, VALUE_BITS, ClusterSums
from pbgeval.stats.float_sums import float_sum
from pbgeval.stats.query_metrics import QUERIES, QueryMetric, keyed_metrics
from pbgeval.stats.rank_types import RankType

_NO_VARIANCE = 1e-9  # standard errors below this part of the value are rounding: all queries agree


def standard_errors(sums: ClusterSums, sides: Sequence[Side]) -> dict[str, float]:
    """Return standard errors by the report's keys.

    A metric has none if all queries agree, or if there are fewer than two edges or, by their sizes, keys of a side.

    Args:
        sums: of all queries.
        sides: that are hidden; `both` pools heads and tails.
    """
    found = {}
    for label in labels_of(sides):
        of_label = [side for side in sides if side.is_in(label) and sums.has(BY_EDGE, side)]
        for name, metric, rank_type in keyed_metrics(sums.layout.cutoffs) if of_label else ():
            error = _standard_error(sums, of_label, metric, rank_type)
            if error is not None:
                found[f"{label}.{name}"] = error
    return found


def _standard_error(sums: ClusterSums, sides: Sequence[Side], metric: QueryMetric, rank_type: RankType) -> float | None:
    unit = metric.denominator(VALUE_BITS)
    numerator, counted = (
        sum(float_sum(of_side) for of_side in of)
        for of in zip(*(_parts(sums, BY_EDGE, side, metric, rank_type) for side in sides), strict=True)
    )
    if not counted:
        return None
    mean = numerator / (unit * counted)
    of_edges = [_residuals(sums, BY_EDGE, side, metric, rank_type, mean) for side in sides]
    num_edges = max(float_sum(sums.column(BY_EDGE, side, QUERIES)) for side in sides)
    if num_edges < 2.0:
        return None
    correction = num_edges / (num_edges - 1.0)
    variance = correction * _squares(np.sum(of_edges, axis=0))
    more = 0.0
    for side, edges_G in zip(sides, of_edges, strict=True):
        if not sums.has(BY_KEY, side):  # entities without numbers
            continue
        size_G = sums.column(BY_KEY, side, QUERIES)
        num_keys = float_sum(size_G) ** 2 / _squares(size_G)  # of equal size that would be worth these
        if num_keys < 2.0 - 1e-9:
            return None
        keys_G = _residuals(sums, BY_KEY, side, metric, rank_type, mean)
        more += _squares(keys_G) * num_keys / (num_keys - 1.0) - correction * _squares(edges_G)
    error = math.sqrt(variance + max(more, 0.0)) / counted
    return abs(metric.slope) * error if error > _NO_VARIANCE * abs(mean) else None


def _parts(sums: ClusterSums, by: str, side: Side, metric: QueryMetric, rank_type: RankType) -> tuple[Floats, Floats]:
    """Return the numerator, in its own units, and what is counted, of each group."""
    numerator_G: Floats = metric.numerator(lambda name: sums.column(by, side, name), rank_type)
    return numerator_G, sums.column(by, side, metric.per)


def _residuals(sums: ClusterSums, by: str, side: Side, metric: QueryMetric, rank_type: RankType, mean: float) -> Floats:
    """Return the sum of each group's residuals from the mean of their side, in units of the metric's ratio."""
    numerator_G, counted_G = _parts(sums, by, side, metric, rank_type)
    residual_G = numerator_G / metric.denominator(VALUE_BITS) - mean * counted_G
    size_G = sums.column(by, side, QUERIES)
    return residual_G - size_G * (float_sum(residual_G) / float_sum(size_G))


def _squares(values_G: Floats) -> float:
    return float_sum(values_G * values_G)
