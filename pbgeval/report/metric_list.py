"""The registry of metrics -> text for the terminal."""

from __future__ import annotations

from typing import Any

from pbgeval.metrics.names import POOLED_HITS, SCORE_METRICS, UnknownMetricError, nearest_names, parse
from pbgeval.metrics.registry import (
    FAMILIES,
    METRICS,
    NDCG_FAMILIES,
    OPTIONAL_FAMILIES,
    Definition,
    MetricFamily,
    find_metric,
    rank_metrics,
)

K = 10  # which member stands for a family
DIRECTIONS = {1: "higher", -1: "lower", None: ""}


def metric_list(name: str | None = None) -> str:
    """Return a paragraph per metric, or that of one metric.

    Raises:
        UnknownMetricError: no such metric; the message names the nearest.
    """
    if name is None:
        return "\n".join(_paragraph(metric) for metric in listed_metrics())
    parsed = parse(name, "realistic")
    # The member of pooled hits that stands for all; another name is kept.
    stands_for = f"{POOLED_HITS}{K}" if parsed.metric.startswith(POOLED_HITS) else parsed.metric
    of_scores = {metric.name: metric for metric in SCORE_METRICS}
    for family in NDCG_FAMILIES:
        cutoff = family.cutoff_of(parsed.metric)
        if cutoff is not None:
            return _paragraph(family.of_cutoff(cutoff))
    metric = of_scores.get(stands_for) or find_metric(parsed.metric)
    if metric is None:
        keys = [*(of.name for of in rank_metrics((1, K))), *of_scores]
        raise UnknownMetricError(f"no metric '{name}'{nearest_names(parsed.metric, parsed, keys)}")
    return _paragraph(metric)


def listed_metrics() -> tuple[Definition, ...]:
    """Return every metric, a member for each family."""
    families = (*FAMILIES, *OPTIONAL_FAMILIES)
    of_types = (family.of_cutoff(K) for family in NDCG_FAMILIES)
    return (*METRICS, *(family.of_cutoff(K) for family in families), *SCORE_METRICS, *of_types)


def synonyms_of(metric: Definition) -> list[str]:
    """Return the other names of a metric, or of its family."""
    families: tuple[MetricFamily[Any], ...] = (*FAMILIES, *OPTIONAL_FAMILIES, *NDCG_FAMILIES)
    for family in families:
        if metric.name == f"{family.prefix}{K}":
            return [*(f"{word}@{K}" for word in family.words), *family.names]
    return list(metric.synonyms)


def _paragraph(metric: Definition) -> str:
    better = DIRECTIONS[metric.direction]
    lines = [
        f"{metric.name}",
        f"    {metric.formula}",
        f"    range {metric.range.text}{f', {better} is better' if better else ''}; by chance: {metric.chance.text}",
        f"    also: {', '.join(synonyms_of(metric)) or '-'}",
        f"    source: {metric.source}",
    ]
    return "\n".join(lines) + "\n"
