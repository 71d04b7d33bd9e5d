"""Statistics of all groups and what is known about the run -> the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from operator import add
from typing import Any

from attrs import define, evolve, frozen
from torch import Tensor

from pbgeval.metrics.auc import AucSample
from pbgeval.metrics.breakdowns import BREAKDOWN_FILES, GROUP_COLUMNS, GroupClasses, breakdown_rows
from pbgeval.metrics.estimates import DrawSums, interval_of
from pbgeval.metrics.intervals import Interval, SampleDesign
from pbgeval.metrics.names import ALL_BY_DEFAULT, Selection
from pbgeval.metrics.ndcg import type_metrics
from pbgeval.metrics.summary import (
    SortedPools,
    Summary,
    diagnose,
    macro_over_keys,
    macro_over_relations,
    summarise,
)
from pbgeval.notation import Bucket, Side
from pbgeval.ranking.tally import SideResult
from pbgeval.report.output import HistogramRows, digest_of
from pbgeval.report.report import BUCKETS, HISTOGRAM, SCHEMA_VERSION, Report
from pbgeval.stats.grouped import RELATION, GroupedStats
from pbgeval.stats.groups import GroupKey, GroupStats, ScorePool, TypeStats
from pbgeval.stats.rank_stats import RankStats, rank_metrics
from pbgeval.stats.ranks import RankCounts

# Statistics of queries for types -> their part of `metrics.json` and of relations.csv.


def add_types(document: dict[str, Any], results: Results, names: Sequence[str]) -> None:
    """Put NDCG beside the other metrics, and a section about the queries for types; nothing where there are none.

    Args:
        document: the content of `metrics.json` without it.
        results: the statistics.
        names: of all relations.
    """
    stats = results.filtered_types or results.raw_types
    if stats is None or results.raw_types is None:
        return
    cutoffs = results.grouped.layout.cutoffs
    for key, of_key in (("metrics", stats), ("raw_metrics", results.raw_types)):
        if key in document:
            found = type_metrics(of_key, cutoffs)
            document[key] |= {f"{label}.{name}": value for label in ("tail", "both") for name, value in found.items()}
    rows = results.grouped.rows(RELATION)
    ranks = reduce(
        add,
        (rows[relation][Side.RHS] for relation in stats.relations if relation in rows),
        RankStats.zero(results.grouped.layout),
    )
    num_queries, num_undefined = stats.counts()
    document["types"] = {
        "relations": [names[relation] for relation in stats.relations],
        "num_queries": num_queries,
        "num_undefined": num_undefined,
        "metrics": {
            f"tail.{name}": value
            for name, value in {**rank_metrics(ranks.total, cutoffs), **type_metrics(stats, cutoffs)}.items()
            if name != "query_auc"
        },
    }


# Sums of what was drawn -> the section `estimates` of metrics.json.


def estimates_section(drawn: Mapping[str, Mapping[str, DrawSums]] | None) -> dict[str, Any] | None:
    """Return what sampled candidates tell of whole partitions; None where it was not asked for.

    Args:
        drawn: sums of all queries whose candidates were sampled, `raw` and (if anything is filtered) `filtered`, by
            `head`, `tail` (if enabled) and `both`.
    """
    if drawn is None:
        return None
    estimates = {
        kind: {f"{label}.{name}": of for label, total in sums.items() for name, of in total.estimates().items()}
        for kind, sums in drawn.items()
    }
    sections = {
        kind: {
            "metrics": {key: estimate.value for key, estimate in of_kind.items()},
            "intervals": {key: interval_of(key, estimate) for key, estimate in of_kind.items()},
            "num_queries_without_draws": drawn[kind]["both"].num_without_draws,
        }
        for kind, of_kind in estimates.items()
    }
    return {
        "candidates": "partition",
        **sections.get("filtered", sections["raw"]),
        **({"raw": sections["raw"]} if "filtered" in sections else {}),
    }


BUCKET_METRICS = ("mean_rank", "mean_reciprocal_rank", "hits_at_")


@define
class Results:
    """The statistics of what has been found or read so far."""

    raw: GroupStats
    filtered: GroupStats | None  # None: nothing is filtered
    grouped: GroupedStats  # of filtered figures where there are any: by relation, by frequency of the query key, ...
    raw_types: TypeStats | None = None  # of queries for types of a hierarchy, where there are any
    filtered_types: TypeStats | None = None  # None: no types, or nothing is filtered
    in_time: GroupStats | None = None  # None: no time-aware filter

    @property
    def headline(self) -> GroupStats:
        """The statistics of the headline's figures: filtered where there are any."""
        return self.raw if self.filtered is None else self.filtered

    def headline_counts(self, result: SideResult) -> RankCounts:
        """Return the counts that the headline's figures are made of."""
        return result.counts.raw if self.filtered is None else result.counts.filtered

    def add(self, key: GroupKey, result: SideResult, dimensions: Mapping[str, Tensor]) -> RankStats:
        """Add the queries of one side of some edges of a bucket.

        Args:
            key: edge path, bucket and side.
            result: what was found.
            dimensions: group of each query, in the order of the result, by name of the dimension.

        Returns:
            The sums of the headline's figures: filtered where there are any.
        """
        headline_counts = self.headline_counts(result)
        headline = self._stats(
            self.raw, key, result, result.counts.raw, result.raw_pool, with_loss=self.filtered is None
        )
        if self.filtered is not None:
            headline = self._stats(self.filtered, key, result, headline_counts, result.filtered_pool, with_loss=True)
        if self.in_time is not None:
            self._stats(self.in_time, key, result, result.counts.time_filtered, ScorePool(), with_loss=False)
        for name, group_Q in dimensions.items():
            self.grouped.add(name, key.side, group_Q, headline_counts)
        return headline

    @staticmethod
    def _stats(
        groups: GroupStats,
        key: GroupKey,
        result: SideResult,
        counts: RankCounts,
        pool: ScorePool,
        *,
        with_loss: bool,
    ) -> RankStats:
        stats = RankStats.from_queries(
            groups.layout,
            counts,
            numbers=result.numbers,
            known_Q=result.counts.known.num_competitors_Q if counts is not result.counts.raw else None,
            loss_Q=result.loss_Q if with_loss else None,
        )
        groups.add(key, stats, counts, pool)
        return stats


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
    buckets: Sequence[Bucket]  # the whole grid
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
    drawn: Mapping[str, Mapping[str, DrawSums]] | None = None  # None: sampled candidates are not to tell of others


def make_report(
    results: Results, context: ReportContext, provenance: Mapping[str, Any], run: Mapping[str, Any]
) -> Report:
    """Compute all metrics from merged statistics. `run` may differ between equal runs; nothing else may."""
    parts = _summaries(results.headline, context)
    total = parts()
    estimate = context.estimate
    chosen = context.selection.select
    paths = (
        [parts(path_index=index) for index in range(len(context.edge_paths))]
        if len(context.edge_paths) > 1
        else [total]
    )
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "complete": True,
        "filter": "raw" if results.filtered is None else "filtered",
        "headline": context.headline,
        "num_edges": total.num_edges,
        "num_queries": total.num_queries,
        "metrics": total.metrics,
        "macro_metrics": chosen(macro_over_keys(results.grouped, context.sides)) if context.with_macro else None,
        "relation_macro_metrics": chosen(macro_over_relations(results.grouped, context.sides)),
        "intervals": {**total.intervals, **_sample_intervals(estimate.intervals if estimate else {}, total.metrics)},
        "estimates": estimates_section(context.drawn),
        "edge_paths": [
            {"path": path, "num_edges": of_path.num_edges, "metrics": of_path.metrics}
            for path, of_path in zip(context.edge_paths, paths, strict=True)
        ],
        "diagnostics": diagnose(results.headline, context.sides),
        "edge_diagnostics": context.edges,
        **_of_inputs(provenance),
    }
    if estimate is not None:
        document["sample"] = {
            "unit": estimate.unit,
            "num_units": len(estimate.design.stratum_U),
            "population": int(estimate.design.population_H.sum()),
            "num_strata": len(estimate.design.population_H),
            "rounds": estimate.rounds,
            "level": estimate.level,
        }
        for of_path, intervals in zip(document["edge_paths"], estimate.intervals_of_paths, strict=True):
            of_path["intervals"] = _sample_intervals(intervals, of_path["metrics"])
    if results.filtered is not None:
        document["raw_metrics"] = _summaries(results.raw, context)(with_loss=False).metrics
    if results.in_time is not None:  # scores are not kept for a third filter
        document["time_filtered_metrics"] = _summaries(
            results.in_time, evolve(context, selection=context.selection.of_ranks)
        )(with_loss=False).metrics
    add_types(document, results, context.classes.names)
    return Report(
        document | ({"refused": total.refused} if total.refused else {}),
        run,
        {
            BUCKETS: _bucket_rows(context, parts),
            HISTOGRAM: HistogramRows.from_groups(results.headline, context.sides),
            **_breakdown_tables(results, context),
        },
    )


def _of_inputs(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance with its digest, and what imports left out of the edges."""
    left_out = (provenance.get("data") or {}).get("left_out")
    return {
        "provenance": {**provenance, "digest": digest_of(provenance)},
        **({} if left_out is None else {"left_out": left_out}),
    }


def _sample_intervals(intervals: Mapping[str, Interval], metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the intervals of the metrics in the report."""
    return {key: interval.report() for key, interval in intervals.items() if key in metrics}


def _summaries(groups: GroupStats, context: ReportContext) -> Callable[..., Summary]:
    """Return what summarises a part of the groups; pools of scores are sorted once."""
    return partial(
        summarise,
        groups,
        SortedPools.from_groups(groups, context.auc_samples),
        context.sides,
        context.selection,
        with_loss=context.with_loss,
    )


def _breakdown_tables(results: Results, context: ReportContext) -> dict[str, tuple[Mapping[str, Any], ...]]:
    """Return the rows of each table of breakdowns, by name."""
    is_chosen = cache(context.selection.has)  # the same keys in every row
    types = results.filtered_types or results.raw_types
    cutoffs = results.grouped.layout.cutoffs

    def of_types(row: Mapping[str, Any]) -> dict[str, float | None]:
        """Return further figures of a relation: None where it asks for no types."""
        found = {} if types is None else type_metrics(types, cutoffs, row["relation_id"])
        return {f"tail.{key}": value for key, value in found.items()}

    return {
        BREAKDOWN_FILES[name].removesuffix(".csv"): tuple(
            {
                **{key: value for key, value in row.items() if key in GROUP_COLUMNS[name] or is_chosen(key)},
                **(of_types(row) if name == "relation" else {}),
            }
            for row in breakdown_rows(name, results.grouped, context.classes, context.sides)
        )
        for name in context.breakdowns
        if name in BREAKDOWN_FILES
    }


def _bucket_rows(context: ReportContext, parts: Callable[..., Summary]) -> tuple[dict[str, Any], ...]:
    others = ("both.auc", "both.query_auc", "both.loss")
    summaries = (
        (path, bucket, parts(path_index=path_index, bucket=bucket))
        for path_index, path in enumerate(context.edge_paths)
        for bucket in context.buckets
    )
    return tuple(
        {
            "edge_path": path,
            "lhs_partition": bucket.lhs,
            "rhs_partition": bucket.rhs,
            "num_edges": summary.num_edges,
            **{
                key: value
                for key, value in summary.metrics.items()
                if key.startswith("both.") and (key.rpartition(".")[2].startswith(BUCKET_METRICS) or key in others)
            },
        }
        for path, bucket, summary in summaries
    )
