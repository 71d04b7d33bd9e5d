"""Statistics of all groups and what is known about the run -> the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from pbgeval.metrics.summary import AucSample, diagnose, summarise
from pbgeval.notation import Bucket, Side
from pbgeval.ranking import RankType
from pbgeval.report.output import digest_of
from pbgeval.report.report import SCHEMA_VERSION, Report
from pbgeval.stats.groups import GroupStats
from pbgeval.stats.histograms import bin_edges

BUCKET_METRICS = ("mean_rank", "mean_reciprocal_rank", "hits_at_")


@frozen(eq=False)
class Evaluated:
    """What was evaluated, besides the statistics."""

    edge_paths: Sequence[str]  # as they are shown: no absolute path
    buckets: Sequence[Bucket]  # the whole grid
    sides: tuple[Side, ...]
    auc_sample: AucSample
    with_loss: bool
    headline: str


def make_report(
    groups: GroupStats, evaluated: Evaluated, provenance: Mapping[str, Any], run: Mapping[str, Any]
) -> Report:
    """Compute all metrics from merged statistics. What `run` says may differ between equal runs; nothing else may."""
    pools = {key: pool.sort() for key, pool in groups.pools.items()}

    def summary(path_index: int | None = None, bucket: Bucket | None = None) -> Any:  # noqa: ANN401
        return summarise(
            groups,
            pools,
            evaluated.sides,
            evaluated.auc_sample,
            with_loss=evaluated.with_loss,
            path_index=path_index,
            bucket=bucket,
        )

    total = summary()
    num_paths = len(evaluated.edge_paths)
    paths = [total] if num_paths == 1 else [summary(path_index) for path_index in range(num_paths)]
    document = {
        "schema_version": SCHEMA_VERSION,
        "complete": True,
        "filter": "raw",
        "headline": evaluated.headline,
        "num_edges": total.num_edges,
        "num_queries": total.num_edges * len(evaluated.sides),
        "metrics": total.metrics,
        "intervals": total.intervals,
        "edge_paths": [
            {"path": path, "num_edges": of_path.num_edges, "metrics": of_path.metrics}
            for path, of_path in zip(evaluated.edge_paths, paths, strict=True)
        ],
        "diagnostics": diagnose(groups, evaluated.sides),
        "provenance": {**provenance, "digest": digest_of(provenance)},
        "run": run,
    }
    bucket_rows = tuple(
        _bucket_row(path, bucket, summary(path_index, bucket))
        for path_index, path in enumerate(evaluated.edge_paths)
        for bucket in evaluated.buckets
    )
    return Report(document, bucket_rows, tuple(_histogram_rows(groups, evaluated.sides)))


def _bucket_row(path: str, bucket: Bucket, summary: Any) -> dict[str, Any]:  # noqa: ANN401 - a metrics.Summary
    row: dict[str, Any] = {
        "edge_path": path,
        "lhs_partition": bucket.lhs,
        "rhs_partition": bucket.rhs,
        "num_edges": summary.num_edges,
    }
    for key, value in summary.metrics.items():
        side, _, name = key.partition(".")
        metric = name.rpartition(".")[2]
        if side == "both" and (metric.startswith(BUCKET_METRICS) or name in ("auc", "query_auc", "loss")):
            row[key] = value
    return row


def _histogram_rows(groups: GroupStats, sides: Iterable[Side]) -> Iterable[dict[str, Any]]:
    """Yield how often each rank occurs: a bin holds the ranks from its lower to its upper edge, both included."""
    for side in sides:
        histograms = groups.side_histograms(side)
        for rank_type in RankType:
            halves = 2 if rank_type is RankType.REALISTIC else 1
            counts = histograms.ranks[rank_type]
            for bin_index, count in zip(counts.keys.tolist(), counts.counts.tolist(), strict=True):
                low, high = bin_edges(bin_index)
                yield {
                    "side": side.label,
                    "rank_type": rank_type.value,
                    "lower_edge": low / halves,
                    "upper_edge": high / halves,
                    "count": count,
                }
