"""The registry of metrics -> text for the terminal, and the table in docs/metrics.md."""

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
TABLE_HEAD = "| metric | definition | range, better | by chance | synonyms | source |\n|---|---|---|---|---|---|\n"


def metric_list(name: str | None = None) -> str:
    """Return a paragraph per metric, or that of one metric.

    Raises:
        UnknownMetricError: no such metric; the message names the nearest.
    """
    if name is None:
        return "\n".join(_paragraph(metric) for metric in _listed())
    parsed = parse(name, "realistic")
    of_scores = {metric.name: metric for metric in SCORE_METRICS}
    for family in NDCG_FAMILIES:
        cutoff = family.cutoff_of(parsed.metric)
        if cutoff is not None:
            return _paragraph(family.of_cutoff(cutoff))
    metric = of_scores.get(_standing_for_family(parsed.metric)) or find_metric(parsed.metric)
    if metric is None:
        keys = [*(of.name for of in rank_metrics((1, K))), *of_scores]
        raise UnknownMetricError(f"no metric '{name}'{nearest_names(parsed.metric, parsed, keys)}")
    return _paragraph(metric)


def metric_table() -> str:
    """Return the registry as a table in Markdown."""
    return TABLE_HEAD + "".join(_row(metric) for metric in _listed())


def _standing_for_family(name: str) -> str:
    """Return the member of pooled hits that stands for all; another name is kept."""
    return f"{POOLED_HITS}{K}" if name.startswith(POOLED_HITS) else name


def _listed() -> tuple[Definition, ...]:
    families = (*FAMILIES, *OPTIONAL_FAMILIES)
    of_types = (family.of_cutoff(K) for family in NDCG_FAMILIES)
    return (*METRICS, *(family.of_cutoff(K) for family in families), *SCORE_METRICS, *of_types)


def _synonyms(metric: Definition) -> list[str]:
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
        f"    also: {', '.join(_synonyms(metric)) or '-'}",
        f"    source: {metric.source}",
    ]
    return "\n".join(lines) + "\n"


def _row(metric: Definition) -> str:
    better = DIRECTIONS[metric.direction]
    cells = [
        f"`{metric.name}`",
        metric.formula,
        f"{metric.range.text}{f', {better}' if better else ''}",
        metric.chance.text,
        ", ".join(_synonyms(metric)),
        metric.source,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
