"""Statistics of queries for types -> their part of `metrics.json` and of relations.csv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, Protocol

from pbgeval.metrics.rank import rank_metrics
from pbgeval.metrics.type_metrics import type_metrics
from pbgeval.notation import Side
from pbgeval.ranking import RankType
from pbgeval.stats.grouped import RELATION, GroupedStats
from pbgeval.stats.rank_stats import RankStats
from pbgeval.stats.type_stats import TypeStats

LABELS = ("tail", "both")  # head queries ask for no types


class Results(Protocol):
    """Merged statistics of all workers."""

    @property
    def grouped(self) -> GroupedStats: ...
    @property
    def raw_types(self) -> TypeStats | None: ...
    @property
    def filtered_types(self) -> TypeStats | None: ...


def add_types(document: dict[str, Any], results: Results, names: Sequence[str]) -> None:
    """Put NDCG beside the other metrics, and a section about the queries for types; nothing where there are none.

    Args:
        document: the content of `metrics.json` without it.
        results: the statistics.
        names: of all relations.
    """
    stats = _headline(results)
    if stats is None or results.raw_types is None:
        return
    cutoffs = results.grouped.layout.cutoffs
    for key, of_key in (("metrics", stats), ("raw_metrics", results.raw_types)):
        if key in document:
            found = type_metrics(of_key, cutoffs)
            document[key] |= {f"{label}.{name}": value for label in LABELS for name, value in found.items()}
    rows = results.grouped.rows(RELATION)
    of_relations = [rows[relation][Side.RHS] for relation in stats.relations if relation in rows]
    ranks = reduce(add, of_relations, RankStats.zero(results.grouped.layout))
    num_queries, num_undefined = stats.counts()
    document["types"] = {
        "relations": [names[relation] for relation in stats.relations],
        "num_queries": num_queries,
        "num_undefined": num_undefined,
        "metrics": {
            **{
                f"tail.{rank_type.value}.{name}": value
                for rank_type in RankType
                for name, value in rank_metrics(ranks, rank_type).items()
            },
            **{f"tail.{name}": value for name, value in type_metrics(stats, cutoffs).items()},
        },
    }


def types_of_row(results: Results, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the further columns of a relation's row: empty (None) for relations that ask for no types."""
    stats = _headline(results)
    if stats is None:
        return {}
    found = type_metrics(stats, results.grouped.layout.cutoffs, row["relation_id"])
    return {f"tail.{name}": value for name, value in found.items()}


def _headline(results: Results) -> TypeStats | None:
    return results.raw_types if results.filtered_types is None else results.filtered_types
