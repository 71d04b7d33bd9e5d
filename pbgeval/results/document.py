"""Statistics of all groups and what is known about the run -> the result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.metrics.auc import AucSample
from pbgeval.metrics.breakdown_names import BREAKDOWN_FILES, GROUP_COLUMNS
from pbgeval.metrics.breakdowns import GroupClasses, breakdown_rows
from pbgeval.metrics.intervals import Interval, SampleDesign
from pbgeval.metrics.names import ALL_BY_DEFAULT, Selection, in_reading_order
from pbgeval.metrics.standard_errors import standard_errors
from pbgeval.metrics.summary import (
    SortedPools,
    bucket_figures,
    diagnose,
    macro_over_keys,
    macro_over_relations,
    summarise,
)
from pbgeval.notation import Side
from pbgeval.ranking.tally import SideResult
from pbgeval.results.rank_rows import HistogramRows
from pbgeval.results.result import BUCKETS, HISTOGRAM, SCHEMA_VERSION, OnDemand, Result
from pbgeval.scoring.full_precision import full_precision
from pbgeval.stats.cluster_sums import ClusterSums
from pbgeval.stats.grouped import GroupedStats
from pbgeval.stats.groups import GroupKey, GroupStats
from pbgeval.stats.rank_stats import StatsLayout, sums_of_groups
from pbgeval.stats.ranks import QueryCounts, RankCounts
from pbgeval.storage.json_files import digest_of

BUCKET_METRICS = ("mean_rank", "mean_reciprocal_rank", "hits_at_")
# Of so many queries a report keeps the statistics, some hundred kB, and computes what few read when it is read; of more
# it computes all at once.
MAX_QUERIES_KEPT = 1 << 14


@frozen(eq=False)
class SideOfEdges:
    """The queries that hide one side of some edges of a bucket."""

    key: GroupKey  # edge path, bucket and side
    result: SideResult
    dimensions: Mapping[str, Tensor]  # the group of each query, in the order of the result, by name of the dimension
    clusters: Mapping[str, np.ndarray] = field(
        factory=dict
    )  # by what a cluster is, that of each query, for their errors


@define
class RunStats:
    """The statistics of what has been found or read so far."""

    raw: GroupStats
    filtered: GroupStats | None  # None: nothing is filtered
    grouped: GroupedStats  # of filtered figures where there are any: by relation, by frequency of the query key, ...
    clusters: ClusterSums  # of the headline's figures, for their standard errors
    in_time: GroupStats | None = None  # None: no time-aware filter

    @property
    def headline(self) -> GroupStats:
        """The statistics of the headline's figures: filtered where there are any."""
        return self.raw if self.filtered is None else self.filtered

    def headline_counts(self, counts: QueryCounts) -> RankCounts:
        """Return the counts that the headline's figures are made of: filtered where there are any."""
        return counts.raw if self.filtered is None else counts.filtered

    def add(self, found: Sequence[SideOfEdges]) -> None:
        """Add queries: of very many buckets at once, since each call takes some milliseconds."""
        found = sorted(found, key=lambda part: (part.key.side.value, part.key.path_index))
        if not found:
            return
        counts = QueryCounts.concatenate([part.result.counts for part in found])
        headline = self.headline_counts(counts)
        losses = _joined_losses([part.result for part in found])
        self._add_sums(self.raw, found, counts.raw, None, losses if self.filtered is None else None)
        if self.filtered is not None:
            self._add_sums(self.filtered, found, headline, counts.known, losses)
        if self.in_time is not None:
            self._add_sums(self.in_time, found, counts.time_filtered, counts.known, None)
        start = 0
        for side, its in groupby(found, lambda part: part.key.side):
            of_side = list(its)
            stop = start + sum(part.result.counts.raw.num_queries for part in of_side)
            its_counts = headline.between(start, stop)
            for name in of_side[0].dimensions:
                group_Q = torch.cat([part.dimensions[name] for part in of_side])
                self.grouped.add(name, side, group_Q, its_counts)
            clusters = {by: np.concatenate([part.clusters[by] for part in of_side]) for by in of_side[0].clusters}
            self.clusters.add(side, clusters, its_counts)
            start = stop
        for part in found:
            self.raw.pools[part.key] += part.result.raw_pool
            if self.filtered is not None:
                self.filtered.pools[part.key] += part.result.filtered_pool

    @staticmethod
    def _add_sums(
        groups: GroupStats,
        found: Sequence[SideOfEdges],
        counts: RankCounts,
        known: RankCounts | None,
        loss_Q: Tensor | None,
    ) -> None:
        parts = [(part.key, part.result.counts.raw.num_queries) for part in found]
        sums_GD = sums_of_groups(
            groups.layout,
            counts,
            np.array([size for _, size in parts]),
            numbers=[part.result.numbers for part in found],
            known_Q=None if known is None else known.num_competitors_Q,
            loss_Q=loss_Q,
        )
        groups.add(parts, sums_GD, counts)


def _joined_losses(results: Sequence[SideResult]) -> Tensor | None:
    """Join the losses of queries; those that have none add nothing. None where no query has one."""
    if all(result.loss_Q is None for result in results):
        return None
    return torch.cat(
        [
            torch.zeros(result.counts.raw.num_queries, dtype=torch.float64) if result.loss_Q is None else result.loss_Q
            for result in results
        ]
    )


@frozen(eq=False)
class SampleEstimate:
    """A sample of edges, and what it says of all of them."""

    unit: str  # edge or chunk
    design: SampleDesign  # how its units were drawn
    rounds: int
    level: float  # of the intervals
    pool_share: float  # of its scores that the pools hold
    intervals: Mapping[str, Interval]
    intervals_of_paths: Sequence[Mapping[str, Interval]]  # of each edge path


@frozen(eq=False)
class ReportContext:
    """What was context, besides the statistics."""

    edge_paths: Sequence[str]  # as they are shown: no absolute path
    sides: tuple[Side, ...]
    auc_samples: Mapping[Side, AucSample]  # what the pools of scores hold
    with_loss: bool
    headline: str
    with_macro: bool  # whether query keys were counted
    breakdowns: Sequence[str]
    classes: GroupClasses
    estimate: SampleEstimate | None = None  # None: all edges were evaluated
    edges: Mapping[str, int | None] | None = None  # what they share with each other; None: not looked at
    selection: Selection = ALL_BY_DEFAULT
    num_edges_before_restrictions: int | None = None  # None: none is dropped by restrictions
    evaluated_edges: Mapping[str, Any] | None = None  # None: there are none
    trained_on: Collection[int] = ()  # of `edge_paths`, by index: edges that the checkpoint was trained on


def make_result(
    stats: RunStats, context: ReportContext, provenance: Mapping[str, Any], run: Mapping[str, Any]
) -> Result:
    """Compute all metrics from merged statistics. `run` may differ between equal runs; nothing else may."""
    pools = SortedPools.from_groups(stats.headline, context.auc_samples)  # sorted once
    parts = partial(summarise, stats.headline, pools, context.sides, context.selection, with_loss=context.with_loss)
    total = parts()
    estimate = context.estimate
    paths = (
        [parts(path_index=index) for index in range(len(context.edge_paths))]
        if len(context.edge_paths) > 1
        else [total]
    )
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "complete": True,
        "filter": "raw" if stats.filtered is None else "filtered",
        "headline": context.headline,
        "num_edges": total.num_edges,
        "num_queries": total.num_queries,
        "metrics": total.metrics,
        "intervals": {**total.intervals, **_sample_intervals(estimate.intervals if estimate else {}, total.metrics)},
        "edge_paths": [
            {
                "path": path,
                "num_edges": of_path.num_edges,
                **({"trained_on": True} if index in context.trained_on else {}),
                "metrics": of_path.metrics,
            }
            for index, (path, of_path) in enumerate(zip(context.edge_paths, paths, strict=True))
        ],
        "diagnostics": diagnose(stats.headline, context.sides),
        "edge_diagnostics": context.edges,
        "provenance": {
            **provenance,
            "digest": digest_of(provenance),
            **({} if context.evaluated_edges is None else {"evaluated": context.evaluated_edges}),
        },
    }
    further = {
        "num_edges_before_restrictions": context.num_edges_before_restrictions,
        "left_out": (provenance.get("data") or {}).get("left_out"),
        "refused": total.refused or None,
    }
    document |= {name: value for name, value in further.items() if value is not None}
    if estimate is not None:
        document["sample"] = _sample_section(estimate)
        for of_path, intervals in zip(document["edge_paths"], estimate.intervals_of_paths, strict=True):
            of_path["intervals"] = _sample_intervals(intervals, of_path["metrics"])
    tables = {
        BUCKETS: _bucket_rows(stats.headline, pools, context),
        HISTOGRAM: HistogramRows.from_groups(stats.headline, context.sides),
    }
    return Result(
        _on_demand(document, _further_sections(stats, context, total.metrics.keys()), total.num_queries),
        run,
        _on_demand(tables, _breakdown_tables(stats.grouped, context), total.num_queries),
    )


def _on_demand(known: Mapping[str, Any], later: Mapping[str, Callable[[], Any]], num_queries: int) -> Mapping[str, Any]:
    """Return what is known, and what is computed when it is read, whatever torch's defaults are by then."""
    if num_queries > MAX_QUERIES_KEPT:
        return {**known, **{name: compute() for name, compute in later.items()}}
    return OnDemand.of(known, {name: full_precision()(compute) for name, compute in later.items()})


def _further_sections(stats: RunStats, context: ReportContext, keys: Collection[str]) -> dict[str, Callable[[], Any]]:
    """Return what computes the sections beside the headline, of which those of a small graph cost more than its ranks.

    Args:
        stats: of all queries.
        context: of the run.
        keys: of the headline's metrics.
    """
    sides, selection, grouped = context.sides, context.selection, stats.grouped

    def of_groups(groups: GroupStats, chosen: Selection) -> dict[str, Any]:
        pools = SortedPools.from_groups(groups, context.auc_samples)
        return summarise(groups, pools, sides, chosen, with_loss=False).metrics

    found: dict[str, Callable[[], Any]] = {
        "macro_metrics": lambda: selection.select(macro_over_keys(grouped, sides)) if context.with_macro else None,
        "relation_macro_metrics": lambda: selection.select(macro_over_relations(grouped, sides)),
    }
    if stats.clusters:
        found["standard_errors"] = partial(_errors, stats.clusters.layout, stats.clusters.pack(), sides, keys)
    if stats.filtered is not None:
        found["raw_metrics"] = partial(of_groups, stats.raw, selection)
    if stats.in_time is not None:  # scores are not kept for a third filter
        found["time_filtered_metrics"] = partial(of_groups, stats.in_time, selection.of_ranks)
    return found


def _errors(layout: StatsLayout, packed: np.ndarray, sides: Sequence[Side], keys: Collection[str]) -> dict[str, float]:
    """Return the standard errors of some metrics from sums by clusters, which are small when they are packed."""
    clusters = ClusterSums(layout)
    clusters.add_packed(packed)
    return {key: error for key, error in standard_errors(clusters, sides).items() if key in keys}


def _sample_section(estimate: SampleEstimate) -> dict[str, Any]:
    return {
        "unit": estimate.unit,
        "num_units": len(estimate.design.stratum_N),
        "population": int(estimate.design.population_G.sum()),
        "num_strata": len(estimate.design.population_G),
        "rounds": estimate.rounds,
        "level": estimate.level,
    }


def _sample_intervals(intervals: Mapping[str, Interval], metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the intervals of the metrics in the result."""
    return {key: interval.report() for key, interval in intervals.items() if key in metrics}


def _breakdown_tables(
    grouped: GroupedStats, context: ReportContext
) -> dict[str, Callable[[], tuple[Mapping[str, Any], ...]]]:
    """Return what computes the rows of each table of breakdowns, by name."""
    is_chosen = cache(context.selection.has)  # the same keys in every row

    def rows_of(name: str) -> tuple[Mapping[str, Any], ...]:
        rows = [
            {key: value for key, value in row.items() if key in GROUP_COLUMNS[name] or is_chosen(key)}
            for row in breakdown_rows(name, grouped, context.classes, context.sides)
        ]
        return _in_reading_order(rows, context.headline)

    return {
        BREAKDOWN_FILES[name].removesuffix(".csv"): partial(rows_of, name)
        for name in context.breakdowns
        if name in BREAKDOWN_FILES
    }


def _in_reading_order(rows: Sequence[Mapping[str, Any]], headline: str) -> tuple[dict[str, Any], ...]:
    """Return rows of equal keys with the columns that people read first in front."""
    ordered = in_reading_order(next(iter(rows), {}), headline)
    return tuple({key: row[key] for key in ordered} for row in rows)


def _bucket_rows(groups: GroupStats, pools: SortedPools, context: ReportContext) -> tuple[dict[str, Any], ...]:
    """Return a row for each edge path and each bucket of which it has a file."""
    others = ("auc", "query_auc", "loss")

    @cache  # the same keys in every row
    def is_shown(key: str) -> bool:
        is_figure = key.rpartition(".")[2].startswith(BUCKET_METRICS) or key in others
        return is_figure and context.selection.has(f"both.{key}")

    rows = []
    for path_index, bucket in groups.buckets:
        num_edges, metrics = bucket_figures(
            groups, pools, context.sides, path_index, bucket, with_loss=context.with_loss
        )
        rows.append(
            {
                "edge_path": context.edge_paths[path_index],
                "lhs_partition": bucket.lhs,
                "rhs_partition": bucket.rhs,
                "num_edges": num_edges,
                **{f"both.{key}": value for key, value in metrics.items() if is_shown(key)},
            }
        )
    return _in_reading_order(rows, context.headline)
