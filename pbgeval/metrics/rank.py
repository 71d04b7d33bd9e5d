"""Rank statistics -> the metrics that are ratios of sums, and the loss. Definitions are in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import TypeVar

from pbgeval.notation import Side
from pbgeval.stats.query_metrics import QueryMetric, keyed_metrics, ratio
from pbgeval.stats.rank_stats import FRACTION_BITS, LOSS_FRACTION_BITS, RankStats
from pbgeval.stats.ranks import RankType

Sums = Callable[[str], int]  # the sum of a column of `StatsLayout`: `RankStats.total`, or of queries that are weighted


def query_mean(sums: Sums, metric: QueryMetric, rank_type: RankType) -> float | None:
    """Return a metric from its sums, rounded once; None where nothing is counted."""
    return metric.mean(metric.numerator(sums, rank_type), sums(metric.per), FRACTION_BITS)


def rank_metrics(sums: Sums, cutoffs: tuple[int, ...], *, adjusted: bool = False) -> dict[str, float | int | None]:
    """Return `<rank type>.<metric>` and `query_auc`; None where it is undefined.

    Args:
        sums: of some queries.
        cutoffs: K of hits at K.
        adjusted: also the adjusted mean rank index.
    """
    metrics: dict[str, float | int | None] = {}
    for key, metric, rank_type in keyed_metrics(cutoffs, adjusted=adjusted):
        if "." in key:
            metrics.setdefault(f"{rank_type.value}.count", sums("num_queries"))
        metrics[key] = query_mean(sums, metric, rank_type)
    return metrics


def mean_loss(stats: RankStats, num_edges: int) -> float | None:
    """Return PBG's loss: both sides' sum per edge. None if some query's loss is not a finite number below 2^28."""
    if stats.total("num_undefined_losses"):
        return None
    return ratio(stats.total("loss"), num_edges << LOSS_FRACTION_BITS)


Added = TypeVar("Added")  # statistics, histograms, lists: whatever adds


def by_label(of_side: Mapping[Side, Added], sides: Sequence[Side]) -> dict[str, Added]:
    """Return what is known of the enabled sides by label, and of `both`: their queries pooled."""
    labelled = {side.label: of_side[side] for side in sides}
    return {**labelled, "both": reduce(add, labelled.values())}
