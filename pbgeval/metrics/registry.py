"""The list of rank metrics, and the names by which they are found.

Documentation, checks of names and every table of rank metrics are made from this list, so a metric is added here.
Keys are ours; the synonyms are PyKEEN's keys and synonyms, OGB's and PBG's, and the usual abbreviations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from types import MappingProxyType
from typing import Generic, TypeVar

from attrs import frozen

from pbgeval.metrics.adjusted_metrics import ADJUSTED_METRICS, adjusted_hits_at, z_hits_at
from pbgeval.metrics.base_metrics import (
    COUNT,
    GEOMETRIC_MEAN_RANK,
    MEAN_RANK,
    MEAN_RECIPROCAL_RANK,
    MEDIAN_RANK,
    UNEXPECTED_METRICS,
    hits_at,
    mean_reciprocal_rank_at,
)
from pbgeval.metrics.metric import Definition, Metric
from pbgeval.metrics.ndcg_definitions import ndcg_at

DEFAULT_CUTOFF = 10  # what PyKEEN means by "hits@k"
LARGEST_CUTOFF_DIGITS = 15  # beyond, a cut-off is not exact as a float


Member = TypeVar("Member", bound=Definition)


@frozen(eq=False)
class MetricFamily(Generic[Member]):
    """Metrics that differ by their cut-off K, from 1."""

    prefix: str  # of their names; the cut-off follows
    words: tuple[str, ...]  # that may stand in place of the prefix, before "_at_", "@", "_at" or nothing
    names: tuple[str, ...]  # further names of the member with the default cut-off
    of_cutoff: Callable[[int], Member]

    def cutoff_of(self, name: str) -> int | None:
        """Return the cut-off that a name means: hits_at_3, hits@3, h@3, r3; hits@k is hits at 10."""
        if name in self.names:
            return DEFAULT_CUTOFF
        words = "|".join(map(re.escape, self.words))
        found = re.fullmatch(rf"(?:{words})(?:(?:_at_|@|_at|)([0-9]+)(?:_list)?|(?:_at_|@)k?)", name)
        if found is None:
            return None
        digits = found[1] or str(DEFAULT_CUTOFF)
        return int(digits) if 0 < int(digits[: LARGEST_CUTOFF_DIGITS + 1]) < 10**LARGEST_CUTOFF_DIGITS else None


METRICS: tuple[Metric, ...] = (
    COUNT,
    MEAN_RANK,
    MEAN_RECIPROCAL_RANK,
    GEOMETRIC_MEAN_RANK,
    MEDIAN_RANK,
    *UNEXPECTED_METRICS,
    *ADJUSTED_METRICS,
)
FAMILIES: tuple[MetricFamily[Metric], ...] = (
    MetricFamily("hits_at_", ("hits", "h", "r"), (), hits_at),
    MetricFamily("adjusted_hits_at_", ("adjusted_hits", "ahits", "ah"), ("ahk",), adjusted_hits_at),
    MetricFamily("z_hits_at_", ("z_hits", "zhits", "zahits", "zah", "zh"), ("zahk", "zhk"), z_hits_at),
)
# Not among the metrics of every report: they are there when asked for.
OPTIONAL_FAMILIES: tuple[MetricFamily[Metric], ...] = (
    MetricFamily("mean_reciprocal_rank_at_", ("mean_reciprocal_rank", "mrr", "ihmr"), (), mean_reciprocal_rank_at),
)
# Of the queries for types, where there is a hierarchy: linear gain and discount jk, the task's own, need no more words.
NDCG_FAMILIES: tuple[MetricFamily[Definition], ...] = (
    MetricFamily("ndcg_jk_at_", ("ndcg_jk", "ndcg"), ("ndcg",), partial(ndcg_at, "linear", "jk")),
    MetricFamily("ndcg_standard_at_", ("ndcg_standard",), (), partial(ndcg_at, "linear", "standard")),
    MetricFamily(
        "exponential_ndcg_jk_at_",
        ("exponential_ndcg_jk", "exponential_ndcg"),
        (),
        partial(ndcg_at, "exponential", "jk"),
    ),
    MetricFamily(
        "exponential_ndcg_standard_at_",
        ("exponential_ndcg_standard",),
        (),
        partial(ndcg_at, "exponential", "standard"),
    ),
)
NDCG_PREFIXES = tuple(family.prefix for family in NDCG_FAMILIES)
SYNONYMS = MappingProxyType({synonym: metric.name for metric in METRICS for synonym in metric.synonyms})
_BY_NAME = MappingProxyType({metric.name: metric for metric in METRICS})


def rank_metrics(cutoffs: Iterable[int]) -> tuple[Metric, ...]:
    """Return all metrics in order, those of the families at these cut-offs."""
    return METRICS + tuple(family.of_cutoff(cutoff) for family in FAMILIES for cutoff in cutoffs)


def metric_key(name: str) -> str:
    """Return the key that a metric's name (in lower case, without side and rank type) means; an unknown one is kept."""
    families: tuple[MetricFamily[Definition] | MetricFamily[Metric], ...] = (
        *FAMILIES,
        *OPTIONAL_FAMILIES,
        *NDCG_FAMILIES,
    )
    for family in families:
        cutoff = None if name in SYNONYMS else family.cutoff_of(name)
        if cutoff is not None:
            return f"{family.prefix}{cutoff}"
    return SYNONYMS.get(name, name)


def find_metric(name: str) -> Metric | None:
    """Return the metric of a name as `metric_key` takes it; None if there is none."""
    key = metric_key(name)
    for family in (*FAMILIES, *OPTIONAL_FAMILIES):
        cutoff = family.cutoff_of(key)
        if cutoff is not None:
            return family.of_cutoff(cutoff)
    return _BY_NAME.get(key)
