"""Statistics of all groups -> the flat metrics of the report: `<side>.<rank type>.<metric>` and their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm

import numpy as np
from attrs import evolve, field, frozen

from pbgeval.metrics.auc import (
    OF_SAMPLED_EDGES,
    AucSample,
    PooledAuc,
    counted_classification,
    counted_hits,
    pooled_auc,
    pooled_classification,
    pooled_hits,
)
from pbgeval.metrics.classification import NAMES
from pbgeval.metrics.distribution import CandidateGroups, Means, RankDistribution
from pbgeval.metrics.names import POOLED_HITS, Selection
from pbgeval.metrics.registry import EXPECTED, Metric, Value, known_rank_metrics
from pbgeval.notation import Bucket, Side, grouped, labels_of
from pbgeval.stats.bins import bin_middles
from pbgeval.stats.grouped import KEY_FREQUENCY, RELATION, GroupedStats
from pbgeval.stats.groups import GroupKey, GroupStats, SortedPool
from pbgeval.stats.histograms import NUM_CANDIDATES, RankHistograms, by_class
from pbgeval.stats.keyed_sums import KeyedSums, first_of_each
from pbgeval.stats.pooled_counts import PooledCounts
from pbgeval.stats.query_metrics import COMPETING_QUERIES, QUERIES, QUERY_AUC, ratio
from pbgeval.stats.rank_stats import (
    FRACTION_BITS,
    RankStats,
    StatsLayout,
    Sums,
    by_label,
    mean_loss,
    query_mean,
    rank_metrics,
)
from pbgeval.stats.rank_types import RankType

Metrics = dict[str, Value]


# Merged statistics of an evaluation -> every rank metric of the registry, of every rank type.
#
# Means that add up over queries come from exact integer sums. Metrics that need the distribution (medians, geometric
# means, deviations, chance levels) come from histograms, which are exact for ranks below `histograms.EXACT_BINS`.

EXPECTED_LIKE = RankType.REALISTIC  # averaging over the orders of ties gives this type's mean rank


def _means(sums: Sums, layout: StatsLayout, rank_type: RankType | None) -> Means:
    """Return the means of a rank type; None: the means over all orders of ties.

    They are exact, unlike ranks from a wide bin, whose relative error is up to 2^-11. Sums over queries are integers;
    weighted sums share one denominator.
    """
    means = {metric.name: query_mean(sums, metric, rank_type or EXPECTED_LIKE) for metric in layout.metrics}
    for metric in layout.tied_metrics if rank_type is None else ():
        units = (1 << FRACTION_BITS) // metric.denominator(FRACTION_BITS)
        best = sums(f"{RankType.OPTIMISTIC.value}.{metric.name}") * units
        below = sums(f"expected_below_optimistic.{metric.name}")
        means[metric.name] = ratio(best - below, sums(QUERIES) << FRACTION_BITS)
    return means.get


def all_rank_metrics(stats: RankStats, histograms: RankHistograms, optional: Sequence[Metric] = ()) -> dict[str, Value]:
    """Return `<rank type>.<metric>` -> value for queries of equal weight; None where it is undefined.

    Args:
        stats: sums over some queries.
        histograms: of the same queries.
        optional: metrics to add to those of every report.
    """
    groups = CandidateGroups.from_counts(histograms.num_candidates)  # shared, so that its values are computed once
    by_type = {
        rank_type: RankDistribution.from_counts(
            histograms.ranks(rank_type), groups, doubled=rank_type is RankType.REALISTIC
        )
        for rank_type in RankType
    }
    return _values(stats.total, stats.layout, by_type, optional)


def all_weighted_metrics(sums: Sums, grouped: GroupedStats, sides: tuple[Side, ...]) -> dict[str, Value]:
    """Return `<rank type>.<metric>` -> value for queries that weigh 1 / (class): None where it is undefined.

    Args:
        sums: over the queries of the sides, times their weights.
        grouped: the same queries by class.
        sides: the sides of the queries.
    """
    class_G, candidates_G, num_G = _joined([grouped.key_histogram(NUM_CANDIDATES, side) for side in sides])
    groups = CandidateGroups(candidates_G.astype(np.float64), 1.0 / class_G, num_G)
    by_type = {}
    for rank_type in RankType:
        class_N, bin_N, num_N = _joined([grouped.key_histogram(rank_type.value, side) for side in sides])
        bins, first_K = first_of_each(bin_N)
        place_N = np.repeat(np.arange(len(bins)), np.diff(first_K, append=len(bin_N)))
        by_type[rank_type] = RankDistribution(
            ranks_K=bin_middles(bins) / (2.0 if rank_type is RankType.REALISTIC else 1.0),
            weight_K=np.bincount(place_N, num_N / class_N, len(bins)).astype(np.float64),
            groups=groups,
            num_queries=int(num_G.sum()),
            is_weighted=True,
        )
    return _values(sums, grouped.layout, by_type)


def _values(
    sums: Sums, layout: StatsLayout, by_type: Mapping[RankType, RankDistribution], optional: Sequence[Metric] = ()
) -> dict[str, Value]:
    metrics = (*known_rank_metrics(layout.cutoffs), *optional)
    distributions = {
        **{
            kind.value: evolve(distribution, means=_means(sums, layout, kind)) for kind, distribution in by_type.items()
        },
        EXPECTED: evolve(by_type[EXPECTED_LIKE], means=_means(sums, layout, None)),
    }
    return {
        f"{rank_type}.{metric.name}": metric.value(distribution)
        for rank_type, distribution in distributions.items()
        for metric in metrics
        if metric.has_rank_type(rank_type)
    }


def _joined(counts: list[KeyedSums]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add up (class, value, count) of several sides, by value, then class."""
    query_class, value, count = by_class(KeyedSums.sum(counts))
    order = np.lexsort((query_class, value))
    return query_class[order], value[order], count[order]


# Statistics of all groups -> the flat metrics of the report.


@frozen(eq=False)
class SortedPools:
    """The sorted pools of groups, and a cache of their pooled AUCs."""

    pools: Mapping[GroupKey, SortedPool]
    counted: Mapping[tuple[int, Side], PooledCounts]
    samples: Mapping[Side, AucSample]
    _aucs: dict[tuple[tuple[GroupKey, ...], bool], PooledAuc | None] = field(factory=dict, init=False)

    @classmethod
    def from_groups(cls, groups: GroupStats, samples: Mapping[Side, AucSample]) -> SortedPools:
        """Sort the pools of all groups; `samples` describes the scores that each side's pools hold."""
        return cls({key: pool.sort() for key, pool in groups.pools.items()}, groups.counted, samples)

    def sample(self, keys: Sequence[GroupKey]) -> AucSample:
        """Return how the pools of some groups were sampled: alike for both ends; no metric joins ends and relations."""
        return self.samples[keys[0].side] if keys else AucSample(all_true=True, all_competing=True)

    def union(self, keys: Sequence[GroupKey]) -> SortedPool:
        """Return the scores of some groups."""
        return SortedPool.union([self.pools[key] for key in keys])

    def counts(self, keys: Sequence[GroupKey]) -> PooledCounts | None:
        """Return the counts of all competitors of whole edge paths; None if they are not counted."""
        paths_and_sides = dict.fromkeys((key.path_index, key.side) for key in keys)
        parts = [self.counted[path_and_side] for path_and_side in paths_and_sides]
        total = sum(parts, PooledCounts.nothing())
        return total if total.num_kept else None

    def auc(self, keys: Sequence[GroupKey], *, with_error: bool) -> PooledAuc | None:
        """Return the pooled AUC of the union of some groups; estimating its error for sampled edges is slow."""
        sample = self.sample(keys)
        design = sample.design if with_error else None
        cache_key = tuple(keys), design is None  # of all edges, the only bucket has the AUC of the whole
        if cache_key not in self._aucs:
            self._aucs[cache_key] = pooled_auc(
                [self.pools[key] for key in keys],
                all_true=sample.all_true,
                all_competing=sample.all_competing,
                design=design,
            )
        return self._aucs[cache_key]


@frozen(eq=False)
class Summary:
    """Metrics of some groups, with the intervals of those that are estimated."""

    num_edges: int
    num_queries: int  # ranked ones
    metrics: Metrics
    intervals: dict[str, dict[str, float]]
    refused: dict[str, str]  # reason by metric that is None under these settings


def summarise(
    groups: GroupStats,
    pools: SortedPools,
    sides: tuple[Side, ...],
    selection: Selection,
    *,
    with_loss: bool,
    path_index: int | None = None,
) -> Summary:
    """Return the selected metrics of all groups, or of one edge path.

    `both` pools the queries of the enabled sides; a disabled side has no keys.
    """
    keys = {side: groups.keys_of(side, path_index) for side in sides}
    keys_of = by_label(keys, sides)
    labelled = by_label({side: groups.rank_stats(side_keys) for side, side_keys in keys.items()}, sides)
    histograms_of = by_label({side: groups.side_histograms(side, path_index) for side in sides}, sides)
    metrics: Metrics = {}
    intervals: dict[str, dict[str, float]] = {}
    refused: dict[str, str] = {}
    for label, stats in labelled.items():
        ranked = {
            **all_rank_metrics(stats, histograms_of[label], selection.optional_metrics),
            "query_auc": query_mean(stats.total, QUERY_AUC, RankType.REALISTIC),
        }
        pooled, pooled_intervals, reasons = _pool_metrics(pools, keys_of[label], selection)
        metrics |= {f"{label}.{name}": value for name, value in (ranked | pooled).items()}
        intervals |= {f"{label}.{name}": interval for name, interval in pooled_intervals.items()}
        refused |= {f"{label}.{name}": reason for name, reason in reasons.items()}
    num_edges = _num_edges(labelled[sides[0].label])
    if with_loss:
        metrics["both.loss"] = mean_loss(labelled["both"], num_edges)
    return Summary(
        num_edges,
        labelled["both"].total("num_queries"),
        selection.select(metrics),
        selection.select(intervals),
        selection.select(refused),
    )


def bucket_figures(
    groups: GroupStats, pools: SortedPools, sides: tuple[Side, ...], path_index: int, bucket: Bucket, *, with_loss: bool
) -> tuple[int, Metrics]:
    """Return a bucket's number of edges, and the metrics that follow from the sums of both its sides.

    These are mean ranks, mean reciprocal ranks, hits, both AUCs and the loss: few, as there may be many buckets.
    """
    keys = [GroupKey(path_index, bucket, side) for side in sides]
    both_keys = [key for key in keys if key.side.is_in("both")]
    stats = groups.rank_stats(both_keys)
    num_edges = _num_edges(groups.rank_stats(keys[:1]))
    auc = pools.auc(both_keys, with_error=False)
    metrics = rank_metrics(stats.total, stats.layout.cutoffs) | {"auc": None if auc is None else auc.value}
    return num_edges, metrics | ({"loss": mean_loss(stats, num_edges)} if with_loss else {})


def _num_edges(stats: RankStats) -> int:
    return stats.total("num_queries") + stats.total("num_outside")


def _pool_metrics(
    pools: SortedPools, keys: Sequence[GroupKey], selection: Selection
) -> tuple[Metrics, dict[str, dict[str, float]], dict[str, str]]:
    """Return the metrics of some groups' pooled scores, the intervals of estimates, and why metrics are None."""
    names = [*(NAMES if selection.classification else ()), *(f"{POOLED_HITS}{k}" for k in selection.pooled_cutoffs)]
    counts = pools.counts(keys)
    if counts is not None:
        true = pools.union(keys).true
        found = counted_classification(true, counts) | counted_hits(true, counts, selection.pooled_cutoffs)
        return {name: found[name] for name in ("auc", *names)}, {}, {}
    sample, auc = pools.sample(keys), pools.auc(keys, with_error=True)
    metrics: Metrics = {"auc": None if auc is None else auc.value}
    interval = None if auc is None else auc.interval(sample.level)
    intervals = {} if interval is None else {"auc": interval}
    if not names:
        return metrics, intervals, {}
    if sample.reason:
        return {**dict.fromkeys(names), **metrics}, intervals, dict.fromkeys(names, sample.reason)
    pool = pools.union(keys)
    classifier, estimated = pooled_classification(pool, sample) if selection.classification else ({}, {})
    hits = pooled_hits(pool, selection.pooled_cutoffs)
    refused = {} if sample.design is None else dict.fromkeys(hits, OF_SAMPLED_EDGES)
    return metrics | classifier | hits | dict.fromkeys(refused), intervals | estimated, refused


def diagnose(groups: GroupStats, sides: tuple[Side, ...]) -> dict[str, object]:
    """Return the diagnostics of the queries, by side and for both."""
    histograms_of = by_label({side: groups.side_histograms(side) for side in sides}, sides)
    found: dict[str, object] = {}
    for label, stats in by_label({side: groups.rank_stats(groups.keys_of(side)) for side in sides}, sides).items():
        total = stats.total
        num_queries = stats.total("num_queries")
        candidates = histograms_of[label].num_candidates.keys
        found[label] = {
            "num_queries": num_queries,
            "num_candidates": {
                "min": int(candidates.min()) if len(candidates) else None,
                "mean": ratio(total("num_competitors") + num_queries, num_queries),
                "max": int(candidates.max()) if len(candidates) else None,
            },
            "num_tied_queries": total("num_tied_queries"),
            "tied_share": ratio(total("num_tied_queries"), num_queries),
            "mean_num_ties": ratio(total("pessimistic.mean_rank") - total("optimistic.mean_rank"), 2 * num_queries),
            "num_queries_topped_up": total("num_short_lists"),
            "num_queries_without_competitors": num_queries - total("num_competing_queries"),
            "num_queries_outside": total("num_outside"),
            "num_copies_excluded": total("num_excluded"),
            "num_known_excluded": total("known"),
            "num_undefined_losses": total("num_undefined_losses"),
        }
    return found


# Statistics of groups of queries -> macro averages: every query key, or every relation, counts equally.
#
# Both are weighted means over queries: a query weighs 1 / (how many evaluated edges share its key), as in PyKEEN's
# MacroRankBasedEvaluator, or 1 / (queries of its relation). Queries of equal weight are added up before
# weighting. Weights are exact fractions, and each metric is rounded once. Definitions are in docs/metrics.md.


def macro_over_keys(grouped: GroupedStats, sides: Sequence[Side]) -> Metrics:
    """Return the metrics where each query weighs 1 / (frequency of its key).

    Keys are those of metrics.json. `both` pools the queries of the enabled sides, so a side counts in proportion to
    its distinct keys. `count` is the number of queries. `<side>.query_auc` leaves out queries without competitors;
    `<side>.auc` is None, because pooled scores are not kept by key.
    """
    rows = [(frequency, by_label(by_side, sides)) for frequency, by_side in grouped.rows(KEY_FREQUENCY).items()]
    metrics: Metrics = {}
    for label in labels_of(sides):
        sums = weighted_sums(grouped.layout, [(frequency, stats[label]) for frequency, stats in rows]).__getitem__
        found = all_weighted_metrics(sums, grouped, tuple(side for side in sides if side.is_in(label)))
        found |= {"query_auc": query_mean(sums, QUERY_AUC, RankType.REALISTIC), "auc": None}
        metrics |= {f"{label}.{name}": value for name, value in found.items()}
    return metrics


def macro_over_relations(grouped: GroupedStats, sides: Sequence[Side]) -> Metrics:
    """Return the unweighted means over relations of each relation's metrics.

    Relations without queries of the side are left out; `query_auc` leaves out those without competitors. `both` pools
    the queries of a relation's sides. `count` is the number of queries.
    """
    rows = [by_label(by_side, sides) for by_side in grouped.rows(RELATION).values()]
    metrics: Metrics = {}
    for label in labels_of(sides):
        by_relation = [stats[label] for stats in rows]
        sums, competing_sums = (
            weighted_sums(
                grouped.layout, [(stats.total(column), stats) for stats in by_relation if stats.total(column)]
            )
            for column in (QUERIES, COMPETING_QUERIES)
        )
        found = rank_metrics(sums.__getitem__, grouped.layout.cutoffs)
        found |= {
            f"{rank_type.value}.count": sum(stats.total(QUERIES) for stats in by_relation) for rank_type in RankType
        }
        found |= {"query_auc": query_mean(competing_sums.__getitem__, QUERY_AUC, RankType.REALISTIC), "auc": None}
        metrics |= {f"{label}.{name}": value for name, value in found.items()}
    return metrics


def weighted_sums(layout: StatsLayout, rows: Sequence[tuple[int, RankStats]]) -> dict[str, int]:
    """Sum each column, divided by its row's divisor, times a common multiple of the divisors.

    Args:
        layout: of the columns.
        rows: (divisor, statistics of queries that each weigh 1 / divisor).
    """
    by_divisor = grouped(rows)  # fewer terms, because the multiple has many digits
    multiple = lcm(*by_divisor)
    sums = dict.fromkeys(layout.names, 0)
    for divisor, parts in by_divisor.items():
        total, weight = sum(parts[1:], parts[0]), multiple // divisor
        for name in sums:
            sums[name] += weight * total.total(name)
    return sums
