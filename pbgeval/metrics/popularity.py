"""Ranked queries and how often training has seen their entities -> how much of a figure comes from popular ones.

Queries are added up by how many training edges have what a measure looks at, so everything follows from sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from pbgeval.metrics.breakdown_names import MEASURES
from pbgeval.metrics.summary import weighted_sums
from pbgeval.notation import Side
from pbgeval.stats.grouped import GroupedStats
from pbgeval.stats.histograms import MAX_CLASSES
from pbgeval.stats.query_metrics import MEAN_RECIPROCAL_RANK, QUERIES, ratio
from pbgeval.stats.rank_stats import FRACTION_BITS, RankStats, StatsLayout, by_label, query_mean
from pbgeval.stats.rank_types import RankType

LIMITS = 10 ** np.arange(19)  # of strata: from how many training edges on a query is in the next
WEIGHTS: Mapping[str, Callable[[int], float]] = {  # by beta; IEEE arithmetic, so the same bits on any machine
    "0.5": lambda count: 1.0 / math.sqrt(1 + count),
    "1": lambda count: 1.0 / (1 + count),
}

Counted = tuple[int, dict[str, RankStats]]  # (a key, statistics of its queries by label)


def popularity_groups(measure: str, count_Q: np.ndarray, frequency_Q: np.ndarray) -> dict[str, np.ndarray]:
    """Return the groups of queries, by dimension.

    Args:
        measure: what is counted.
        count_Q: in how many training edges, int64.
        frequency_Q: how many evaluated edges share each query's key, below `MAX_CLASSES`.
    """
    return {measure: count_Q, _strata(measure): np.searchsorted(LIMITS, count_Q, "right") * MAX_CLASSES + frequency_Q}


def limits_of(stratum: int) -> dict[str, int | None]:
    """Return the least and the greatest number of training edges of a stratum."""
    return {
        "at_least": int(LIMITS[stratum - 1]) if stratum else 0,
        "at_most": int(LIMITS[stratum]) - 1 if stratum < len(LIMITS) else None,
    }


def popularity_section(grouped: GroupedStats, sides: Sequence[Side], headline: str) -> dict[str, Any]:
    """Return the part of metrics.json, by measure, from the queries in `popularity_groups`, which are of entities."""
    found, sides = {}, [side for side in sides if side.is_in("both")]
    for measure in MEASURES:
        counts, strata = (
            [(key, by_label(of_side, sides)) for key, of_side in grouped.rows(name).items()]
            for name in (measure, _strata(measure))
        )
        rank_type = RankType(headline)
        found[measure] = {
            "half": _half(counts, rank_type),
            "strata": _rows(strata, grouped.layout, rank_type),
            "stratified": {beta: _stratified(counts, grouped.layout, rank_type, beta) for beta in WEIGHTS},
        }
    return found


def _strata(measure: str) -> str:
    return f"{measure}_strata"


def _reciprocals(counted: Sequence[Counted], rank_type: RankType) -> tuple[int, int]:
    """Return the number of queries of both sides, and the sum of their reciprocal ranks in fixed point."""
    of_both = [of_label["both"] for _, of_label in counted]
    return (
        sum(stats.total(QUERIES) for stats in of_both),
        sum(MEAN_RECIPROCAL_RANK.numerator(stats.total, rank_type) for stats in of_both),
    )


def _half(counts: Sequence[Counted], rank_type: RankType) -> dict[str, Any] | None:
    """Return the most popular queries that make half of the mean reciprocal rank; None without queries."""
    num_queries, total = _reciprocals(counts, rank_type)
    error = num_queries << FRACTION_BITS - 54  # each is rounded once in float64, by at most 2^-54
    queries = reciprocals = 0
    for counted in reversed(counts):
        of_count = _reciprocals([counted], rank_type)
        queries, reciprocals = queries + of_count[0], reciprocals + of_count[1]
        if 2 * reciprocals + error >= total:
            return {
                "at_least": counted[0],
                "query_share": ratio(queries, num_queries),
                "mrr_share": ratio(reciprocals, total),
            }
    return None


def _rows(strata: Sequence[Counted], layout: StatsLayout, rank_type: RankType) -> list[dict[str, Any]]:
    rows = []
    num_queries, total = _reciprocals(strata, rank_type)
    for stratum, members in groupby(strata, lambda counted: counted[0] // MAX_CLASSES):
        of_stratum = [(key % MAX_CLASSES, of_label) for key, of_label in members]
        queries, reciprocals = _reciprocals(of_stratum, rank_type)
        row: dict[str, Any] = {
            **limits_of(stratum),
            "num_queries": queries,
            "query_share": ratio(queries, num_queries),
            "mrr_share": ratio(reciprocals, total),
        }
        for name, divided in (("metrics", False), ("macro_metrics", True)):
            sums_of = {
                label: weighted_sums(layout, [(frequency if divided else 1, of[label]) for frequency, of in of_stratum])
                for label in of_stratum[0][1]
            }
            row[name] = {
                f"{label}.{rank_type.value}.{metric.name}": query_mean(sums.__getitem__, metric, rank_type)
                for label, sums in sums_of.items()
                for metric in layout.metrics
                if metric.is_share
            }
        rows.append(row)
    return rows


def _stratified(
    counts: Sequence[Counted], layout: StatsLayout, rank_type: RankType, beta: str
) -> dict[str, float | None]:
    """Return the means in which a query weighs (1 + its count) ** -beta."""
    found: dict[str, float | None] = {}
    weights = [WEIGHTS[beta](count) for count, _ in counts]
    for label in counts[0][1] if counts else ():
        of_counts = [of_label[label] for _, of_label in counts]
        weight = math.fsum(w * of.total(QUERIES) for w, of in zip(weights, of_counts, strict=True))
        for metric in (metric for metric in layout.metrics if metric.is_share):  # the reciprocal rank, and hits
            unit = metric.denominator(FRACTION_BITS)
            total = math.fsum(
                w * (metric.numerator(of.total, rank_type) / unit) for w, of in zip(weights, of_counts, strict=True)
            )
            found[f"{label}.{rank_type.value}.{metric.name}"] = total / weight if weight else None
    return found
