"""Statistics of all groups -> the flat metrics of the report: `<side>.<rank type>.<metric>` and their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

from attrs import field, frozen

from pbgeval.metrics.auc import PooledAuc, pooled_auc
from pbgeval.metrics.intervals import SampleDesign
from pbgeval.metrics.merged import all_rank_metrics
from pbgeval.metrics.pooled import PoolSample, pooled_classification, pooled_hits
from pbgeval.metrics.rank import mean_loss, query_auc, rank_metrics, ratio
from pbgeval.metrics.selection import Selection
from pbgeval.notation import Bucket, Side
from pbgeval.ranking import RankType
from pbgeval.stats.groups import GroupKey, GroupStats
from pbgeval.stats.histograms import RankHistograms
from pbgeval.stats.pool import SortedPool
from pbgeval.stats.rank_stats import RankStats

Metrics = dict[str, float | int | None]


@frozen
class AucSample:
    """Which scores of the edges that were evaluated the pools hold, and how these edges were drawn."""

    all_true: bool
    all_competing: bool
    design: SampleDesign | None = None  # None: all edges
    level: float = 0.95  # of intervals


@frozen(eq=False)
class SortedPools:
    """The pools of groups, each sorted once; a pooled AUC is computed once, however many summaries show it."""

    pools: Mapping[GroupKey, SortedPool]
    sample: AucSample
    _aucs: dict[tuple[tuple[GroupKey, ...], bool], PooledAuc | None] = field(factory=dict, init=False)

    @classmethod
    def of_groups(cls, groups: GroupStats, sample: AucSample) -> SortedPools:
        """Sort the pools of all groups."""
        return cls({key: pool.sort() for key, pool in groups.pools.items()}, sample)

    def auc(self, keys: Sequence[GroupKey], *, with_error: bool) -> PooledAuc | None:
        """Return the pooled AUC of the union of some groups; the error of sampled edges takes time for all of them."""
        of_keys = tuple(keys), with_error
        if of_keys not in self._aucs:
            self._aucs[of_keys] = pooled_auc(
                [self.pools[key] for key in keys],
                all_true=self.sample.all_true,
                all_competing=self.sample.all_competing,
                design=self.sample.design if with_error else None,
            )
        return self._aucs[of_keys]

    def union(self, keys: Sequence[GroupKey]) -> SortedPool:
        """Return the scores of some groups together."""
        return SortedPool.union([self.pools[key] for key in keys])


@frozen(eq=False)
class Summary:
    """Metrics of some groups, with the intervals of those that are estimated."""

    num_edges: int
    num_queries: int  # ranked ones
    metrics: Metrics
    intervals: dict[str, dict[str, float]]


def summarise(
    groups: GroupStats,
    pools: SortedPools,
    sides: tuple[Side, ...],
    selection: Selection,
    *,
    with_loss: bool,
    path_index: int | None = None,
    bucket: Bucket | None = None,
) -> Summary:
    """Return the metrics of all groups, of one edge path, or of one bucket of it: those that are selected.

    `both` pools the queries of the enabled sides; a disabled side has no keys. A bucket has only the metrics that
    follow from sums: mean rank, mean reciprocal rank, hits, and the pooled AUC.
    """
    of_side = {side.label: groups.rank_stats(side, path_index, bucket) for side in sides}
    keys_of = {side.label: list(groups.keys_of(side, path_index, bucket)) for side in sides}
    labelled = {**of_side, "both": reduce(add, of_side.values())}
    keys_of["both"] = reduce(add, keys_of.values())
    histograms_of = None
    if bucket is None:
        of_each = {side.label: groups.side_histograms(side, path_index) for side in sides}
        histograms_of = {**of_each, "both": reduce(add, of_each.values())}
    metrics: Metrics = {}
    intervals: dict[str, dict[str, float]] = {}
    for label, stats in labelled.items():
        if histograms_of is not None:
            metrics |= {
                f"{label}.{name}": value
                for name, value in all_rank_metrics(stats, histograms_of[label], selection.optional_metrics).items()
            }
        else:
            metrics |= {
                f"{label}.{rank_type.value}.{name}": value
                for rank_type in RankType
                for name, value in rank_metrics(stats, rank_type).items()
            }
        metrics[f"{label}.query_auc"] = query_auc(stats)
        of_pool, intervals_of_pool = _pool_metrics(stats, pools, keys_of[label], selection, only_auc=bucket is not None)
        metrics |= {f"{label}.{name}": value for name, value in of_pool.items()}
        intervals |= {f"{label}.{name}": interval for name, interval in intervals_of_pool.items()}
    one_side = of_side[sides[0].label]
    num_edges = one_side.count("num_queries") + one_side.count("num_outside")
    if with_loss:
        metrics["both.loss"] = mean_loss(labelled["both"], num_edges)
    chosen, chosen_intervals = selection.of_metrics(metrics), selection.of_metrics(intervals)
    return Summary(num_edges, labelled["both"].count("num_queries"), chosen, chosen_intervals)


def _pool_metrics(
    stats: RankStats, pools: SortedPools, keys: Sequence[GroupKey], selection: Selection, *, only_auc: bool
) -> tuple[Metrics, dict[str, dict[str, float]]]:
    """Return what follows from the scores of some groups, with the intervals of what is estimated."""
    auc = pools.auc(keys, with_error=not only_auc)
    metrics: Metrics = {"auc": None if auc is None else auc.value}
    intervals = {}
    interval = None if auc is None else auc.interval(pools.sample.level)
    if interval is not None:
        intervals["auc"] = interval
    if only_auc or not (selection.classification or selection.pooled_cutoffs):
        return metrics, intervals
    pool = pools.union(keys)
    all_true, all_competing, design = pools.sample.all_true, pools.sample.all_competing, pools.sample.design
    whole = all_true and all_competing and design is None
    metrics |= pooled_hits(pool, selection.pooled_cutoffs, whole=whole)
    if selection.classification:
        num_queries = stats.count("num_queries")
        num_competing = stats.total("candidates") - num_queries
        of_pool = PoolSample(pool, num_queries, num_competing, all_true, all_competing, design, pools.sample.level)
        of_classifier, of_estimates = pooled_classification(of_pool)
        metrics |= of_classifier
        intervals |= of_estimates
    return metrics, intervals


def diagnose(groups: GroupStats, sides: tuple[Side, ...]) -> dict[str, object]:
    """Return what a reader must know about the queries, by side and for both."""
    of_side = {side.label: (groups.rank_stats(side), groups.side_histograms(side)) for side in sides}
    both = (
        reduce(add, (stats for stats, _ in of_side.values())),
        reduce(add, (histograms for _, histograms in of_side.values())),
    )
    return {label: _diagnosis(*values) for label, values in {**of_side, "both": both}.items()}


def _diagnosis(stats: RankStats, histograms: RankHistograms) -> dict[str, object]:
    num_queries = stats.count("num_queries")
    candidates = histograms.num_candidates.keys
    return {
        "num_queries": num_queries,
        "num_candidates": {
            "min": int(candidates.min()) if len(candidates) else None,
            "mean": stats.total("candidates") / num_queries if num_queries else None,
            "max": int(candidates.max()) if len(candidates) else None,
        },
        "num_tied_queries": stats.count("num_tied_queries"),
        "tied_share": ratio(stats.count("num_tied_queries"), num_queries),
        "mean_num_ties": ratio(
            stats.total("pessimistic.doubled_rank") - stats.total("optimistic.doubled_rank"), 2 * num_queries
        ),
        "num_queries_topped_up": stats.count("num_short_lists"),
        "num_queries_without_competitors": num_queries - stats.count("num_competing_queries"),
        "num_queries_outside": stats.count("num_outside"),
        "num_copies_excluded": stats.count("num_excluded"),
        "num_known_excluded": stats.total("known"),
        "num_undefined_losses": stats.count("num_undefined_losses"),
    }
